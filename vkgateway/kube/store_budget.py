"""How much of one API server's objects the gateway keeps: the reflectors of a client share one budget."""

from __future__ import annotations

from typing import Final

from vkgateway.kube.errors import ApiError

RETRY_SECONDS: Final = 60.0
"""Delay before objects that did not fit are listed again."""


class StoreFullError(ApiError):
    """An API server has more objects than may be kept. Those that are kept stay, and count as incomplete."""


class StoreBudget:
    """Bound of what all reflectors of one client keep, as a tenant may replace its API server.

    `bytes_max` bounds the JSON of the objects, weighted by how much memory it becomes (`Reflector.weight`). During a
    list, a reflector counts with what was listed so far, so memory may hold twice as much for a moment.
    """

    def __init__(self, *, objects_max: int, bytes_max: int) -> None:
        self.objects_max = objects_max
        self.bytes_max = bytes_max
        self.objects = 0
        self.bytes = 0
        self.problem = ""
        """Why objects are missing; empty if all are kept."""

    def change(self, *, objects: int, size: int, what: str) -> None:
        """Count objects that are kept from now on, or no longer. Raises StoreFullError, and then counts nothing."""
        if objects > 0 or size > 0:
            self._check(self.objects + objects, self.bytes + size, what)
        self.objects += objects
        self.bytes += size

    def list_completed(self) -> None:
        """Record that all objects of a kind are kept."""
        self.problem = ""

    def _check(self, objects: int, size: int, what: str) -> None:
        if objects <= self.objects_max and size <= self.bytes_max:
            return
        limit = (
            f"{self.objects_max} objects" if objects > self.objects_max else f"{self.bytes_max >> 20} MiB of objects"
        )
        self.problem = (
            f"{what}: the API server has more than the {limit} that the gateway keeps of a tenant; delete objects, and "
            f"the gateway lists them again within {RETRY_SECONDS:.0f} s"
        )
        raise StoreFullError(self.problem, retry_after=RETRY_SECONDS)
