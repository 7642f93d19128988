"""Texts about reduced guarantees (pure)."""

from __future__ import annotations

from collections.abc import Mapping

from vkgateway.scheduler.core.decisions import GuaranteeLoss


def cells_text(cells: Mapping[int, int]) -> str:
    """Return cells in the command-line form, the largest first: `2x8+1`; `none` without cells."""
    parts = (f"{number}x{size}" if number > 1 else f"{size}" for size, number in sorted(cells.items(), reverse=True))
    return "+".join(parts) or "none"


def change_text(loss: GuaranteeLoss) -> str:
    """Return the change of a tenant's cells, `2x8 -> 8`; of a guarantee that is a sum, its units: `16 -> 8`."""
    if loss.is_sum:
        return f"{loss.asked.get(1, 0)} -> {loss.held.get(1, 0)}"
    return f"{cells_text(loss.asked)} -> {cells_text(loss.held)}"
