"""One request of a tenant to the kubelet API, with what its endpoint needs to answer it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.memory_limiter import CountBytes
from vkgateway.kubelet.target import PodLister, PodLocator, PodTarget
from vkgateway.model.errors import NotFoundError

if TYPE_CHECKING:
    from vkgateway.kubelet.stats import StatsProvider

_MAX_NAME_LENGTH: Final = 253
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
    pod_locator: PodLocator
    pod_lister: PodLister
    stats_provider: StatsProvider
    idle_timeout: float
    """Seconds after which an upgraded connection on which nothing moves is closed."""
    count_bytes: CountBytes
    """Counts what answering takes of the memory that the tenant may have."""
    node: str = ""
    """The virtual node that is asked, where that is known: all of them share an address."""

    async def require_target(self, namespace: str, pod: str, *, uid: str = "") -> PodTarget:
        """The compute pod behind the tenant's pod, which must have that UID if one is given. Raises Rejected."""
        try:
            found = await self.find_target(namespace, pod)
        except NotFoundError as error:
            raise Rejected(Reply.from_text(404, str(error))) from error
        if uid and uid != found.tenant_uid:
            raise Rejected(
                Reply.from_text(404, f"pod {namespace}/{pod} has another UID than {uid[:_MAX_NAME_LENGTH]!r}")
            )
        return found

    async def find_target(self, namespace: str, pod: str) -> PodTarget:
        """The same. Raises Rejected for what is no name, NotFoundError, NoComputePodError."""
        answer = self.pod_locator(self.tenant, _check_name(namespace, "namespace"), _check_name(pod, "pod"))
        return await answer if inspect.isawaitable(answer) else answer


def check_container_name(value: str) -> str:
    """The container in a path, checked. Raises Rejected."""
    return _check_name(value, "container")


def parse_uid_and_container(rest: tuple[str, ...]) -> tuple[str, str]:
    """What follows the pod in a path: its UID, empty if there is none, and the container. Raises Rejected."""
    return "".join(rest[:-1]), check_container_name(rest[-1])


def _check_name(value: str, what: str) -> str:
    """A name that is safe in a URL and could be an object's. Raises Rejected."""
    if len(value) > _MAX_NAME_LENGTH or not _SUBDOMAIN.fullmatch(value):
        raise Rejected(Reply.from_text(400, f"{what} {value[:_MAX_NAME_LENGTH]!r} is no name of a {what}"))
    return value
