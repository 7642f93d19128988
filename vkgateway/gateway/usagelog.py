"""What tenants' pods used of scarce resources: one record an interval, in a file of JSON lines, and sums over them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Literal

import msgspec

from vkgateway.gateway.jsonlines import JsonLinesWriter, read_rotated_lines

MAX_FILE_BYTES = 64 * 1024 * 1024
"""A file of so many bytes is put aside."""

GroupKey = Literal["tenant", "namespace", "band", "pool", "computeCluster", "resource", "gang", "pod"]


class UsageRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """A pod held something from `start` to `end` (seconds since the epoch).

    Of a pod that runs for long there are several: all from its start, each to a later end, so that none is needed to
    understand another. What lies before the end of an earlier one is counted once, and as that one says.
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

    def __init__(self, path: Path, *, most: int = MAX_FILE_BYTES) -> None:
        self._lines = JsonLinesWriter(path, most=most)

    def write_records(self, *usages: UsageRecord) -> None:
        """Write down intervals; those in which nothing was held are left out."""
        self._lines.append(*(msgspec.json.encode(usage) for usage in usages if usage.end > usage.start and usage.units))


def read_usage(path: Path) -> Iterator[UsageRecord]:
    """All records, the oldest first, also of files that were put aside; lines that are no records are left out.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(UsageRecord).decode
    for line in read_rotated_lines(path):
        try:
            yield decode(line)
        except msgspec.DecodeError:
            continue


class UsageTotal(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """What was used by those of one kind; hours are unit-hours (GPU-hours)."""

    by: dict[str, str]
    hours: float
    borrowed_hours: float
    """Of them outside of guarantees."""
    lost_hours: float
    """Of them work that was lost by being preempted."""
    pods: int


def sum_usage(usages: Iterable[UsageRecord], *, since: float, until: float, by: Sequence[GroupKey]) -> list[UsageTotal]:
    """Sum up what was used between two moments (seconds since the epoch), by these keys, in the order of their values.

    `usages` are in the order in which they were written. The work that was lost is the last of an interval.
    """
    sums: dict[tuple[str, ...], _RunningTotal] = {}
    told: dict[tuple[str, ...], float] = {}
    for usage in usages:
        pod = (usage.tenant, usage.namespace, usage.pod, usage.gang, usage.resource)
        start, end = max(usage.start, since, told.get(pod, 0.0)), min(usage.end, until)
        told[pod] = max(usage.end, told.get(pod, 0.0))
        if end <= start:
            continue
        key = tuple(_group_value(usage, name) for name in by)
        running = sums.setdefault(key, _RunningTotal())
        hours = (end - start) * usage.units / 3600
        running.hours += hours
        running.borrowed += hours if usage.borrowed else 0.0
        running.lost += max(0.0, end - max(since, usage.end - usage.lost)) * usage.units / 3600
        running.pods.add(pod)
    return [
        UsageTotal(
            by=dict(zip(by, key, strict=True)),
            hours=running.hours,
            borrowed_hours=running.borrowed,
            lost_hours=running.lost,
            pods=len(running.pods),
        )
        for key, running in sorted(sums.items(), key=lambda item: item[0])
    ]


class _RunningTotal:
    """A sum under way."""

    def __init__(self) -> None:
        self.hours = self.borrowed = self.lost = 0.0
        self.pods: set[tuple[str, ...]] = set()


def _group_value(usage: UsageRecord, key: GroupKey) -> str:
    return usage.compute_cluster if key == "computeCluster" else str(getattr(usage, key))
