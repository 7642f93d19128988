"""Run times of similar gangs, to forecast the end of a gang that does not declare one."""

from __future__ import annotations

import re
import statistics
from collections import OrderedDict, deque
from typing import Final

_MAX_KINDS: Final = 4096
"""Maximum number of workload kinds; those that ran last are kept."""
_MAX_RUNS: Final = 20
"""Maximum number of runs of a kind."""
_MIN_RUNS: Final = 3
"""Minimum number of runs for a forecast."""
_RUN_SUFFIX: Final = re.compile(r"[0-9]+|[a-z0-9]{5,10}")
"""Parts of a name that differ between runs: numbers, and suffixes of Jobs and generateName."""


class RunHistory:
    """Run times of one tenant's workloads, since the start of the process."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, deque[float]] = OrderedDict()

    def add_run(self, namespace: str, name: str, seconds: float) -> None:
        """Record that a workload of this name completed after a number of seconds."""
        kind = _workload_kind(namespace, name)
        self._kinds.setdefault(kind, deque(maxlen=_MAX_RUNS)).append(seconds)
        self._kinds.move_to_end(kind)
        while len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)

    def expected_run(self, namespace: str, name: str) -> float | None:
        """Return the median run time of workloads of this kind in seconds; None if too few are known."""
        runs = self._kinds.get(_workload_kind(namespace, name), ())
        return statistics.median(runs) if len(runs) >= _MIN_RUNS else None


def _workload_kind(namespace: str, name: str) -> str:
    """Return the name without the parts that differ between runs.

    They are removed one by one: tenants choose names, and a single pattern could be made to backtrack without end.
    """
    kept, dash, last = name.rpartition("-")
    while dash and _RUN_SUFFIX.fullmatch(last):
        name = kept
        kept, dash, last = name.rpartition("-")
    return f"{namespace}/{name}"
