"""check: a short burst and cost, whose ratios are compared with the published ones."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import Final

from bench import report
from bench.outcome import Outcome
from bench.settings import Settings

NAMES: Final = ("burst", "cost")
_PODS: Final = 1250
_TENTH: Final = 0.1


def short_settings(settings: Settings) -> Settings:
    """Return these settings for one turn of the published burst with the fewest pods."""
    return replace(settings, pods=settings.pods or _PODS, turns=1, write=False, check=True)


def find_worse(outcomes: Mapping[str, Outcome]) -> list[str]:
    """Return a line for each ratio that is worse than the published one by more than a tenth.

    Ratios are the targets without a unit: another machine has other seconds and bytes.
    """
    published = report.load_results(report.DOCS / "benchmarks.json")
    return [
        line
        for name, outcome in outcomes.items()
        if name in published
        for line in _compare(outcome, published[name].outcome)
    ]


def _compare(outcome: Outcome, published: Outcome) -> Iterator[str]:
    known = {target.what: target.seen for target in published.targets}
    for target in outcome.targets:
        before = known.get(target.what)
        if target.unit or before is None:
            continue
        worse = target.seen < before * (1 - _TENTH) if target.at_least else target.seen > before * (1 + _TENTH)
        if worse:
            yield f"{target.what}: {target.seen:g}, published {before:g}"
