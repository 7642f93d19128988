"""Where a tenant's pod really runs, and how the endpoint finds that out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass

from vkgateway.kube.upgrade import Dialable


@dataclass(frozen=True, slots=True)
class PodTarget:
    """The compute pod that stands for a tenant's pod: by which client, under which name. `uid` is its own."""

    client: Dialable
    namespace: str
    name: str
    uid: str = ""


Backends = Callable[[str, str, str], "PodTarget | Awaitable[PodTarget]"]
"""(tenant, namespace, pod), all the tenant's words, to the compute pod.

Raises vkgateway.model.errors.NotFoundError with a message for the tenant where there is none: no such pod, or not
yet any below (`pod "x" is waiting to be admitted`). It must look among that tenant's pods only.
"""

Pods = Callable[[str, str], Awaitable[Iterable[bytes]]]
"""(tenant, phase) to its own pods on virtual nodes, as the tenant's API server holds them: JSON objects.

Without a phase all of them. Raises vkgateway.model.errors.VkgatewayError where they cannot be told now.
"""


async def no_pods(_tenant: str, _phase: str) -> Iterable[bytes]:
    """Tell of no pods."""
    return ()
