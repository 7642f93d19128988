"""Usage log of scarce resources: one record per pod and interval as JSON lines, and sums over the records."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final, Literal

import msgspec

from vkgateway.kube.write_gate import Permit
from vkgateway.runtime.jsonlines import open_log, read_rotated_lines
from vkgateway.tenants.usage.days import split_days
from vkgateway.tenants.usage.records import KEY_FIELDS, TenantKey, UsageRecord, tenant_labels

MAX_FILE_BYTES = 64 * 1024 * 1024
"""File size that triggers rotation."""

GroupKey = Literal[
    "day", "tenant", "tenantUid", "namespace", "band", "pool", "computeCluster", "resource", "gang", "pod"
]


class UsageLog:
    """Writer of usage records, to a file or (`-`) to standard output."""

    def __init__(self, target: Path | str, *, max_bytes: int = MAX_FILE_BYTES, permit: Permit | None = None) -> None:
        self.lines: Final = open_log(str(target), name="usage", max_bytes=max_bytes, permit=permit)

    def write_records(self, *usages: UsageRecord) -> None:
        """Write the records, except empty intervals and zero amounts."""
        self.lines.append(*(msgspec.json.encode(usage) for usage in usages if usage.end > usage.start and usage.units))


def read_usage(path: Path) -> Iterator[UsageRecord]:
    """Yield all records including rotated files, oldest first; invalid lines are skipped.

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
    """Total usage of one group; hours are unit-hours (GPU-hours)."""

    by: dict[str, str]
    hours: float
    borrowed_hours: float
    """The part of `hours` outside of guarantees."""
    lost_hours: float
    """The part of `hours` whose work preemptions lost."""
    pods: int


def sum_usage(usages: Iterable[UsageRecord], *, since: float, until: float, by: Sequence[GroupKey]) -> list[UsageTotal]:
    """Return usage totals between two times (seconds since the epoch), grouped and sorted by the keys `by`.

    `usages` are in the order in which they were written. Lost work is the last part of an interval. Tenants that had
    the same name are different groups of `tenant` (see `tenant_labels`).
    """
    sums: dict[tuple[str | TenantKey, ...], _RunningTotal] = defaultdict(_RunningTotal)
    counted_until: dict[tuple[str, ...], float] = {}
    for usage in usages:
        pod = (usage.tenant, usage.tenant_uid, usage.namespace, usage.pod, usage.gang, usage.resource)
        start, end = max(usage.start, since, counted_until.get(pod, 0.0)), min(usage.end, until)
        counted_until[pod] = max(usage.end, counted_until.get(pod, 0.0))
        if end <= start:
            continue
        lost_since = max(since, usage.end - usage.lost)
        first_counted = min(start, lost_since)
        parts = split_days(first_counted, end) if "day" in by else (("", first_counted, end),)
        for day, first, last in parts:
            total = sums[tuple(day if name == "day" else _group_value(usage, name) for name in by)]
            hours = max(0.0, last - max(first, start)) * usage.units / 3600
            total.hours += hours
            total.borrowed += hours if usage.borrowed else 0.0
            total.lost += max(0.0, last - max(first, lost_since)) * usage.units / 3600
            total.pods.add(pod)
    return [
        UsageTotal(
            by=dict(zip(by, key, strict=True)),
            hours=total.hours,
            borrowed_hours=total.borrowed,
            lost_hours=total.lost,
            pods=len(total.pods),
        )
        for key, total in sorted(_by_label(sums).items(), key=lambda item: item[0])
    ]


def _by_label(sums: Mapping[tuple[str | TenantKey, ...], _RunningTotal]) -> dict[tuple[str, ...], _RunningTotal]:
    labels = tenant_labels(value for key in sums for value in key if isinstance(value, tuple))
    merged: dict[tuple[str, ...], _RunningTotal] = defaultdict(_RunningTotal)
    for key, total in sums.items():
        merged[tuple(labels[value] if isinstance(value, tuple) else value for value in key)].add(total)
    return merged


class _RunningTotal:
    """Mutable sums of one group."""

    def __init__(self) -> None:
        self.hours = self.borrowed = self.lost = 0.0
        self.pods: set[tuple[str, ...]] = set()

    def add(self, other: _RunningTotal) -> None:
        self.hours += other.hours
        self.borrowed += other.borrowed
        self.lost += other.lost
        self.pods |= other.pods


def _group_value(usage: UsageRecord, key: GroupKey) -> str | TenantKey:
    if key == "tenant":
        return usage.tenant, usage.tenant_uid
    return str(getattr(usage, KEY_FIELDS.get(key, key)))
