"""What tenants' pods used of scarce resources: one record an interval, in a file of JSON lines, and sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from vkgateway.gateway.jsonlines import JsonLines, read_all

MOST_BYTES = 64 * 1024 * 1024
"""A file of so many bytes is put aside."""

Key = Literal["tenant", "namespace", "band", "pool", "computeCluster", "resource", "gang", "pod"]


class Usage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod held something from `start` to `end` (seconds since the epoch).

    Of one pod there may be several intervals that follow each other: where a log is to tell of pods that still run, and
    where what was borrowed became guaranteed.
    """

    tenant: str
    namespace: str
    pod: str
    gang: str
    band: str
    """guaranteed or low."""
    borrowed: bool
    """Held outside the tenant's guarantee."""
    pool: str
    compute_cluster: str
    resource: str
    units: float
    """How much of the resource (GPUs)."""
    start: float
    end: float
    lost: float = 0.0
    """Of the interval, seconds of work that were lost when it was ended."""
    why: str = ""
    """Why it ended: empty while it runs."""


class UsageLog:
    """Appends records to a file."""

    def __init__(self, path: Path, *, most: int = MOST_BYTES) -> None:
        self._lines = JsonLines(path, most=most)

    def record(self, *usages: Usage) -> None:
        """Write down intervals; those in which nothing was held are left out."""
        self._lines.append(*(msgspec.json.encode(usage) for usage in usages if usage.end > usage.start and usage.units))


def read(path: Path) -> Iterator[Usage]:
    """All records, the oldest first, also of files that were put aside; lines that are no records are left out.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(Usage).decode
    for line in read_all(path):
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue


class Sum(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was used by those of one kind; hours are unit-hours (GPU-hours)."""

    by: dict[str, str]
    hours: float
    borrowed_hours: float
    """Of them outside of guarantees."""
    lost_hours: float
    """Of them work that was lost by being preempted."""
    pods: int


def total(usages: Iterable[Usage], *, since: float, until: float, by: Sequence[Key]) -> list[Sum]:
    """Sum up what was used between two moments (seconds since the epoch), by these keys, in the order of their values.

    What was lost counts where it ended: the work that was lost is the last of the interval.
    """
    sums: dict[tuple[str, ...], _Running] = {}
    for usage in usages:
        start, end = max(usage.start, since), min(usage.end, until)
        if end <= start:
            continue
        key = tuple(_value(usage, name) for name in by)
        running = sums.setdefault(key, _Running())
        hours = (end - start) * usage.units / 3600
        running.hours += hours
        running.borrowed += hours if usage.borrowed else 0.0
        gone = max(0.0, end - max(start, usage.end - usage.lost))
        running.lost += gone * usage.units / 3600
        running.pods.add((usage.tenant, usage.namespace, usage.pod, usage.gang))
    return [
        Sum(
            by=dict(zip(by, key, strict=True)),
            hours=running.hours,
            borrowed_hours=running.borrowed,
            lost_hours=running.lost,
            pods=len(running.pods),
        )
        for key, running in sorted(sums.items(), key=lambda item: item[0])
    ]


class _Running:
    """A sum under way."""

    def __init__(self) -> None:
        self.hours = self.borrowed = self.lost = 0.0
        self.pods: set[tuple[str, str, str, str]] = set()


def _value(usage: Usage, key: Key) -> str:
    return usage.compute_cluster if key == "computeCluster" else str(getattr(usage, key))
