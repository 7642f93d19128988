"""check: a short burst and cost, whose ratios are compared with the published ones."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Final

from bench import report
from bench.outcome import Outcome, Target
from bench.settings import Settings
from vkgateway.api.errors import InputError

NAMES: Final = ("burst", "cost")
_PODS: Final = 1250
_TENTH: Final = 0.1


def short_settings(settings: Settings) -> Settings:
    """Return these settings for one turn of the published burst with the fewest pods."""
    return replace(settings, pods=settings.pods or _PODS, turns=1, write=False)


def find_worse(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a line for each ratio that is worse than the published one by more than a tenth.

    Ratios are the targets without a unit: another machine has other seconds and bytes.

    Raises:
        InputError: no published ratio is one of these.
    """
    published = report.load_results(report.DOCS / "benchmarks.json")
    known = {
        (name, target.what): target.seen for name, result in published.items() for target in result.outcome.targets
    }
    pairs = [
        (target, known[name, target.what])
        for name, outcome in outcomes.items()
        for target in outcome.targets
        if not target.unit and (name, target.what) in known
    ]
    if not pairs:
        raise InputError(
            "no ratio of this run is published", hint="Run `python -m bench burst cost` at the commit to compare with."
        )
    return [
        f"{target.what}: {target.seen:g}, published {before:g}" for target, before in pairs if _is_worse(target, before)
    ]


def _is_worse(target: Target, before: float) -> bool:
    return target.seen < before * (1 - _TENTH) if target.at_least else target.seen > before * (1 + _TENTH)
