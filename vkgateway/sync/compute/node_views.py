"""In-memory views of compute nodes; equal image entries are shared between nodes."""

from __future__ import annotations

from typing import Final
from weakref import WeakValueDictionary

import msgspec

from vkgateway.model.objects import NodeImage, NodeView

MAX_IMAGES: Final = 50
"""Images retained per node; kubelets report up to 50 by default."""
_MAX_NAMES: Final = 8

_decode = msgspec.json.Decoder(NodeView).decode
_shared: WeakValueDictionary[tuple[str, ...], NodeImage] = WeakValueDictionary()
"""Shared image entries by names. Entries are dropped when no node has them."""


def decode_node(data: bytes) -> NodeView:
    """Decode a node from its JSON."""
    view = _decode(data)
    if view.status.images:
        kept = view.status.images[:MAX_IMAGES]
        view.status.images = tuple(_intern_image(image, image.names) for image in kept if image.names)
    return view


def _intern_image(image: NodeImage, names: tuple[str, ...]) -> NodeImage:
    kept = names[:_MAX_NAMES]
    return _shared.setdefault(kept, image if len(kept) == len(names) else NodeImage(names=kept))
