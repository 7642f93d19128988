"""Images on the nodes of a compute cluster, of those that pods request."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from vkgateway.api.objects import NodeView

_RELIST_SECONDS: Final = 300.0
"""Seconds after which the images of nodes are read again."""


class NodeImages:
    """Last known images of nodes.

    Nodes pull images all the time, and each change would rebuild a pool of the snapshot. So images are read when a pod
    requests an image for the first time, and otherwise periodically. Images that no pod requests are left out.
    """

    def __init__(self) -> None:
        self._requested: frozenset[str] = frozenset()
        self._updated_at: float | None = None
        self._images: dict[str, frozenset[str]] = {}

    def images_on(self, name: str) -> frozenset[str]:
        """Return the requested images on a node."""
        return self._images.get(name, frozenset())

    def update_images(self, nodes: Iterable[NodeView], asked: frozenset[str], *, now: float) -> set[str]:
        """Read the nodes' images if that is due; return the names of nodes whose known images changed.

        `asked` are the images that pods request, `now` is in seconds since the epoch.
        """
        due = self._updated_at is None or not self._updated_at <= now < self._updated_at + _RELIST_SECONDS
        if not due and asked <= self._requested:
            return set()
        # Images that no pod requests any more stay until the next full read.
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
    """Return the images that pods of any tenant request."""
    return frozenset().union(*parts)
