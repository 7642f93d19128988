"""The same in several compute clusters: what fails in one holds up no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable

from vkgateway.kube.errors import ApiError
from vkgateway.model.errors import ConflictError, UnavailableError
from vkgateway.sync.compute.link import ComputeLink


async def everywhere(links: Iterable[ComputeLink], act: Callable[[ComputeLink], Awaitable[None]]) -> None:
    """Do something in each compute cluster, one after the other, each to its end.

    Raises the first ApiError, ConflictError or UnavailableError, once all have had their turn.
    """
    first: Exception | None = None
    for link in links:
        try:
            await act(link)
        except (ApiError, ConflictError, UnavailableError) as error:
            first = first or error
    if first is not None:
        raise first
