"""One action in several compute clusters; a failure in one cluster does not block the others."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterable
from typing import TypeVar

from vkgateway.kube.errors import ApiError
from vkgateway.model.errors import ConflictError, UnavailableError

T = TypeVar("T")


async def apply_to_each(places: Iterable[T], action: Callable[[T], Awaitable[None]]) -> None:
    """Run an action for each place, one after the other; an error does not stop the following places.

    Raises the first ApiError, ConflictError or UnavailableError after the last place.
    """
    first_error: Exception | None = None
    for place in places:
        try:
            await action(place)
        except (ApiError, ConflictError, UnavailableError) as error:
            first_error = first_error or error
    if first_error is not None:
        raise first_error
