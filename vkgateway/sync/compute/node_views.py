"""Compute nodes as they are kept in memory: the images that many nodes have are kept once."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import msgspec

from vkgateway.model.objects import NodeImage, NodeView

MOST_IMAGES: Final = 50
"""More images of a node than these are not kept: what a kubelet tells unless it is told otherwise."""
_MOST_NAMES: Final = 8

_decode = msgspec.json.Decoder(NodeView).decode
_shared: WeakValueDictionary[tuple[str, ...], NodeImage] = WeakValueDictionary()
"""By names, as long as any node has it: ten thousand nodes with the same fifty images have fifty of them."""


def decode_node(data: bytes) -> NodeView:
    """Decode a node from its JSON."""
    view = _decode(data)
    if view.status.images:
        kept = view.status.images[:MOST_IMAGES]
        view.status.images = tuple(_intern_image(image, image.names) for image in kept if image.names)
    return view


def _intern_image(image: NodeImage, names: tuple[str, ...]) -> NodeImage:
    kept = names[:_MOST_NAMES]
    return _shared.setdefault(kept, image if len(kept) == len(names) else NodeImage(names=kept))
