"""One request of a tenant to the kubelet API, with what its endpoint needs to answer it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkgateway.kubelet.held import Take
from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.target import Backends, Pods, PodTarget
from vkgateway.model.errors import NotFoundError

if TYPE_CHECKING:
    from vkgateway.kubelet.stats import Figures

_LONGEST_NAME: Final = 253
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class Rejected(Exception):  # noqa: N818 - named by what happened
    """The request ends with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body.decode())
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Call:
    """What an endpoint gets. An endpoint returns its reply, or None if it has used up the connection."""

    tenant: str
    request: Request
    session: Session
    backends: Backends
    pods: Pods
    figures: Figures
    idle_timeout: float
    """Seconds after which an upgraded connection on which nothing moves is closed."""
    take: Take
    """Counts what answering takes of the memory that the tenant may have."""
    node: str = ""
    """The virtual node that is asked, where that is known: all of them share an address."""

    async def target(self, namespace: str, pod: str, *, uid: str = "") -> PodTarget:
        """The compute pod behind the tenant's pod, which must have that UID if one is given. Raises Rejected."""
        try:
            found = await self.find(namespace, pod)
        except NotFoundError as error:
            raise Rejected(Reply.text(404, str(error))) from error
        if uid and uid != found.tenant_uid:
            raise Rejected(Reply.text(404, f"pod {namespace}/{pod} has another UID than {uid[:_LONGEST_NAME]!r}"))
        return found

    async def find(self, namespace: str, pod: str) -> PodTarget:
        """The same. Raises Rejected for what is no name, NotFoundError, NoComputePodError."""
        answer = self.backends(self.tenant, _name(namespace, "namespace"), _name(pod, "pod"))
        return await answer if inspect.isawaitable(answer) else answer


def container_name(value: str) -> str:
    """The container in a path, checked. Raises Rejected."""
    return _name(value, "container")


def uid_and_container(rest: tuple[str, ...]) -> tuple[str, str]:
    """What follows the pod in a path: its UID, empty if there is none, and the container. Raises Rejected."""
    return "".join(rest[:-1]), container_name(rest[-1])


def _name(value: str, what: str) -> str:
    """A name that is safe in a URL and could be an object's. Raises Rejected."""
    if len(value) > _LONGEST_NAME or not _SUBDOMAIN.fullmatch(value):
        raise Rejected(Reply.text(400, f"{what} {value[:_LONGEST_NAME]!r} is no name of a {what}"))
    return value
