"""One request of a tenant to the kubelet API, with what its endpoint needs to answer it."""

from __future__ import annotations

import inspect
import re
from dataclasses import dataclass
from typing import Final

from vkgateway.kubelet.http import Reply, Request, Session
from vkgateway.kubelet.target import Backends, Pods, PodTarget
from vkgateway.model.errors import NotFoundError

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
    idle_timeout: float
    """Seconds after which an upgraded connection on which nothing moves is closed."""

    async def target(self, namespace: str, pod: str) -> PodTarget:
        """The compute pod behind the tenant's pod. Raises Rejected."""
        try:
            found = self.backends(self.tenant, _name(namespace, "namespace"), _name(pod, "pod"))
            return await found if inspect.isawaitable(found) else found
        except NotFoundError as error:
            raise Rejected(Reply.text(404, str(error))) from error


def container_name(value: str) -> str:
    """The container in a path, checked. Raises Rejected."""
    return _name(value, "container")


def _name(value: str, what: str) -> str:
    """A name that is safe in a URL and could be an object's. Raises Rejected."""
    if len(value) > _LONGEST_NAME or not _SUBDOMAIN.fullmatch(value):
        raise Rejected(Reply.text(400, f"{what} {value[:_LONGEST_NAME]!r} is no name of a {what}"))
    return value
