"""The same in several compute clusters: what fails in one holds up no other."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from vkgateway.kube.errors import ApiError
from vkgateway.model.errors import ConflictError, UnavailableError

T = TypeVar("T")


async def apply_to_each(places: Iterable[T], act: Callable[[T], Awaitable[None]]) -> None:
    """Do something in each compute cluster, or with what is there of each, one after the other, each to its end.

    Raises the first ApiError, ConflictError or UnavailableError, once all have had their turn.
    """
    first: Exception | None = None
    for place in places:
        try:
            await act(place)
        except (ApiError, ConflictError, UnavailableError) as error:
            first = first or error
    if first is not None:
        raise first
