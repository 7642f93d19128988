"""Which nodes of a compute cluster have which of the images that pods ask for."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from vkgateway.model.objects import NodeView

_RELIST_SECONDS: Final = 300.0
"""Seconds after which it is looked at anew what nodes have fetched and thrown away."""


class NodeImages:
    """What was seen last.

    Nodes fetch images all the time, and each change makes the facts of a pool anew; so it is looked at when a pod asks
    for an image for the first time, and otherwise now and then. Images that nobody asks for are never in the facts.
    """

    def __init__(self) -> None:
        self._requested: frozenset[str] = frozenset()
        self._updated_at: float | None = None
        self._images: dict[str, frozenset[str]] = {}

    def images_on(self, name: str) -> frozenset[str]:
        """Those on a node."""
        return self._images.get(name, frozenset())

    def update_images(self, nodes: Iterable[NodeView], asked: frozenset[str], *, now: float) -> set[str]:
        """Look at the nodes if it is time to; returns the names of those of which more or less is known than before.

        `asked` are the images that pods ask for, `now` is in seconds since the epoch.
        """
        due = self._updated_at is None or not self._updated_at <= now < self._updated_at + _RELIST_SECONDS
        if not due and asked <= self._requested:
            return set()
        # Until it is due nothing is taken out: what nobody asks for any more does no harm.
        self._requested = asked if due else self._requested | asked
        self._updated_at = now if due else self._updated_at
        old, self._images = self._images, self._find_images(nodes)
        return {name for name in old.keys() | self._images.keys() if old.get(name) != self._images.get(name)}

    def _find_images(self, nodes: Iterable[NodeView]) -> dict[str, frozenset[str]]:
        if not self._requested:
            return {}
        asked, found = self._requested, {}
        sets: dict[frozenset[str], frozenset[str]] = {}
        for node in nodes:
            names = [name for image in node.status.images for name in image.names or () if name in asked]
            if names:
                there = frozenset(names)
                found[node.metadata.name] = sets.setdefault(there, there)
        return found


def requested_images(parts: Iterable[Mapping[str, int]]) -> frozenset[str]:
    """The images that any tenant's pods ask for, out of each tenant's count of them."""
    return frozenset().union(*parts)
