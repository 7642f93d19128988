"""One request of a tenant to the kubelet API, with the services that its endpoint needs."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from vkgateway.api.errors import NotFoundError
from vkgateway.nodes.http import Reply, Request, Session
from vkgateway.nodes.limits import CountBytes
from vkgateway.nodes.target import PodLister, PodLocator, PodTarget

if TYPE_CHECKING:
    from vkgateway.nodes.stats import StatsProvider

_MAX_NAME_LENGTH: Final = 253
_LABEL: Final = "[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_SUBDOMAIN: Final = re.compile(rf"{_LABEL}(\.{_LABEL})*")


class Rejected(Exception):  # noqa: N818 - named by what happened
    """The request is answered with this reply."""

    def __init__(self, reply: Reply) -> None:
        super().__init__(reply.body.decode())
        self.reply = reply


@dataclass(frozen=True, slots=True)
class Call:
    """Argument of an endpoint. An endpoint returns its reply, or None if it has used up the connection."""

    tenant: str
    request: Request
    session: Session
    pod_locator: PodLocator
    pod_lister: PodLister
    stats_provider: StatsProvider
    idle_timeout: float
    """Seconds without bytes after which an upgraded connection is closed."""
    count_bytes: CountBytes
    """Counts the memory of the answer against the tenant's limit."""
    node: str = ""
    """The virtual node of the request, if known: all virtual nodes share an address."""

    async def require_target(self, namespace: str, pod: str, *, uid: str = "") -> PodTarget:
        """Return the compute pod of a tenant pod, which must have the UID if given. Raises Rejected."""
        try:
            target = await self.find_target(namespace, pod)
        except NotFoundError as error:
            raise Rejected(Reply.from_text(404, str(error))) from error
        if uid and uid != target.tenant_uid:
            raise Rejected(
                Reply.from_text(404, f"pod {namespace}/{pod} has another UID than {uid[:_MAX_NAME_LENGTH]!r}")
            )
        return target

    async def find_target(self, namespace: str, pod: str) -> PodTarget:
        """Return the compute pod of a tenant pod. Raises Rejected (invalid name), NotFoundError, NoComputePodError."""
        target = self.pod_locator(self.tenant, _check_name(namespace, "namespace"), _check_name(pod, "pod"))
        return await target if inspect.isawaitable(target) else target


def check_container_name(value: str) -> str:
    """Return a valid container name. Raises Rejected."""
    return _check_name(value, "container")


def parse_uid_and_container(rest: tuple[str, ...]) -> tuple[str, str]:
    """Return the pod's UID (may be empty) and the container from the end of a path. Raises Rejected."""
    return "".join(rest[:-1]), check_container_name(rest[-1])


def _check_name(value: str, what: str) -> str:
    """Return a valid object name, which is safe in a URL. Raises Rejected."""
    if len(value) > _MAX_NAME_LENGTH or not _SUBDOMAIN.fullmatch(value):
        raise Rejected(Reply.from_text(400, f"{what} {value[:_MAX_NAME_LENGTH]!r} is not a valid name of a {what}"))
    return value
