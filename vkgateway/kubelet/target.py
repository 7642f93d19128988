"""Where a tenant's pod really runs, and how the endpoint finds that out."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

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

Pods = Callable[[str], Iterable[Mapping[str, Any]]]
"""(tenant) to its own pods on virtual nodes, as the tenant's API server holds them."""
