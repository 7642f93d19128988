"""How guarantees that had to be reduced, because nodes are missing, are told in words (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.arbiter.decisions import GuaranteeLoss


def cells_text(cells: Mapping[int, int]) -> str:
    """Cells by size, the largest first, as they are written on the command line: `2x8+1`; without any `none`."""
    parts = (f"{number}x{size}" if number > 1 else f"{size}" for size, number in sorted(cells.items(), reverse=True))
    return "+".join(parts) or "none"


def change_text(loss: GuaranteeLoss) -> str:
    """What became of a tenant's cells: `2x8 -> 8`."""
    return f"{cells_text(loss.asked)} -> {cells_text(loss.held)}"
