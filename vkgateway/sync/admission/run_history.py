"""How long gangs like each other ran, so that the end of one that declares none can be foreseen."""

from __future__ import annotations

import re
import statistics
from collections import OrderedDict, deque
from typing import Final

_MAX_KINDS: Final = 4096
"""Kinds of work that are remembered, those that ran last."""
_MAX_RUNS: Final = 20
"""Runs of a kind that are remembered."""
_MIN_RUNS: Final = 3
"""Runs after which a kind is known."""
_RUN_SUFFIX: Final = re.compile(r"[0-9]+|[a-z0-9]{5,10}")
"""Parts that tell a run from the last one of its kind: numbers, and what Jobs and generateName put at the end."""


class RunHistory:
    """What one tenant's work took; forgotten with the process, and learned anew."""

    def __init__(self) -> None:
        self._kinds: OrderedDict[str, deque[float]] = OrderedDict()

    def add_run(self, namespace: str, name: str, seconds: float) -> None:
        """Work of this name ran to its end in so many seconds."""
        kind = _workload_kind(namespace, name)
        self._kinds.setdefault(kind, deque(maxlen=_MAX_RUNS)).append(seconds)
        self._kinds.move_to_end(kind)
        while len(self._kinds) > _MAX_KINDS:
            self._kinds.popitem(last=False)

    def expected_run(self, namespace: str, name: str) -> float | None:
        """Seconds that work of this name will take, as the middle of those before; None: too few are known."""
        runs = self._kinds.get(_workload_kind(namespace, name), ())
        return statistics.median(runs) if len(runs) >= _MIN_RUNS else None


def _workload_kind(namespace: str, name: str) -> str:
    """The name without its last parts. They are taken off one by one: names are for tenants to choose, and a pattern of
    them all could be made to try every way to read one.
    """
    kept, dash, last = name.rpartition("-")
    while dash and _RUN_SUFFIX.fullmatch(last):
        name = kept
        kept, dash, last = name.rpartition("-")
    return f"{namespace}/{name}"
