"""Log of the arbiter's decisions and their inputs as JSON lines, complete enough to replay them."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import Any, Final, TypedDict

import msgspec
import structlog

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock
from vkgateway.kube.write_gate import Permit
from vkgateway.runtime.jsonlines import open_log, read_lines
from vkgateway.scheduler.core.decisions import Decisions, GuaranteeLoss
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import Gang, Node, Policy, Pool, PoolKey, PreemptionPlan, Quota, Snapshot
from vkgateway.scheduler.core.snapshot_diff import diff_gangs


class SnapshotChanges(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Changed parts of a snapshot; unchanged parts are left out."""

    gangs: tuple[Gang, ...] = ()
    """New and changed gangs."""
    gone: tuple[str, ...] = ()
    """IDs of removed gangs."""
    nodes: tuple[tuple[PoolKey, tuple[Node, ...]], ...] = ()
    """Changed nodes by pool, if the pools have the same nodes as before."""
    pools: tuple[Pool, ...] | None = None
    """All pools, if a pool's set of nodes changed."""
    quotas: tuple[Quota, ...] | None = None
    policy: Policy | None = None
    past_shares: tuple[PastShare, ...] = ()
    """New and changed past shares."""
    gone_past_shares: tuple[tuple[str, PoolKey], ...] = ()
    """Tenants and pools of removed past shares."""


class _PastShareChanges(TypedDict, total=False):
    past_shares: tuple[PastShare, ...]
    gone_past_shares: tuple[tuple[str, PoolKey], ...]


def diff_snapshots(before: Snapshot, after: Snapshot) -> SnapshotChanges:
    """Return the changes from one snapshot to a later one. Unchanged parts are recognized by object identity."""
    changed, removed = diff_gangs(before.gangs, after.gangs)
    changed_ids = {gang.id for gang in changed}
    same_pools = len(before.pools) == len(after.pools) and all(map(_has_same_nodes, before.pools, after.pools))
    nodes = (
        (new.key, tuple(_changed_nodes(old, new))) for old, new in zip(before.pools, after.pools, strict=same_pools)
    )
    return SnapshotChanges(
        gangs=tuple(changed),
        gone=tuple(gang.id for gang in removed if gang.id not in changed_ids),
        nodes=tuple(pool for pool in nodes if pool[1]) if same_pools else (),
        pools=None if same_pools else after.pools,
        quotas=after.quotas if after.quotas is not before.quotas and after.quotas != before.quotas else None,
        policy=after.policy if after.policy != before.policy else None,
        **_diff_past_shares(before, after),
    )


def _diff_past_shares(before: Snapshot, after: Snapshot) -> _PastShareChanges:
    if before.past_shares is after.past_shares:
        return {}
    olds, news = _past_shares_by_key(before.past_shares), _past_shares_by_key(after.past_shares)
    return {
        "past_shares": tuple(each for key, each in news.items() if olds.get(key) != each),
        "gone_past_shares": tuple(key for key in olds if key not in news),
    }


def _past_shares_by_key(shares: Iterable[PastShare]) -> dict[tuple[str, PoolKey], PastShare]:
    return {(each.tenant, each.pool): each for each in shares}


def apply_changes(before: Snapshot, changes: SnapshotChanges) -> Snapshot:
    """Return the later snapshot, with gangs in the order of their IDs."""
    gangs = {gang.id: gang for gang in before.gangs} | {gang.id: gang for gang in changes.gangs}
    for name in changes.gone:
        gangs.pop(name, None)
    nodes = {key: {node.name: node for node in new} for key, new in changes.nodes}
    pools = changes.pools if changes.pools is not None else before.pools
    return Snapshot(
        pools=tuple(_replace_nodes(pool, nodes[pool.key]) if pool.key in nodes else pool for pool in pools),
        quotas=changes.quotas if changes.quotas is not None else before.quotas,
        gangs=tuple(gangs[name] for name in sorted(gangs)),
        policy=changes.policy if changes.policy is not None else before.policy,
        past_shares=_apply_past_shares(before.past_shares, changes),
    )


def _apply_past_shares(before: tuple[PastShare, ...], changes: SnapshotChanges) -> tuple[PastShare, ...]:
    """Return the later past shares, by tenant and pool."""
    shares = _past_shares_by_key(before) | _past_shares_by_key(changes.past_shares)
    return tuple(shares[key] for key in sorted(shares) if key not in changes.gone_past_shares)


def _has_same_nodes(old: Pool, new: Pool) -> bool:
    """Return whether two pools differ at most in their nodes' states: same node names, without duplicates."""
    if old is new:
        return True
    names = [node.name for node in new.nodes]
    same = len(set(names)) == len(names) == len(old.nodes) and all(
        node.name == name for node, name in zip(old.nodes, names, strict=True)
    )
    return same and replace(old, nodes=()) == replace(new, nodes=())


def _changed_nodes(old: Pool, new: Pool) -> Iterator[Node]:
    if old is not new:
        for before, after in zip(old.nodes, new.nodes, strict=True):
            if before is not after and before != after:
                yield after


def _replace_nodes(pool: Pool, nodes: dict[str, Node]) -> Pool:
    return replace(pool, nodes=tuple(nodes.get(node.name, node) for node in pool.nodes))


MAX_FILE_BYTES = 256 * 1024 * 1024
"""File size that triggers rotation."""
BYTES_PER_SECOND = 16e6
BURST_BYTES = 64e6
"""Token bucket of the log: bytes per second, and burst.

Beyond it, cycles are written without pending reasons; cycles in which only pending reasons changed are skipped and
counted.
"""
_MAX_CHANGES_RATIO = 4
"""A full snapshot is written when the changes since the last one exceed this multiple of its size."""


_LoggedReasons = tuple[frozenset[tuple[str, str]], tuple[GuaranteeLoss, ...]]
"""Pending gangs with their reasons, and reduced guarantees."""


class LogEntry(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One cycle: input and output of `decide`; `time` is in seconds since the epoch.

    In a file, most entries hold changes instead of a snapshot. `read_entries` returns full snapshots.
    """

    time: float
    snapshot: Snapshot | None = None
    changes: SnapshotChanges | None = None
    """Changes since the previous line's snapshot, instead of a snapshot."""
    decisions: Decisions
    holds_left_out: bool = False
    """Whether pending reasons were left out because of the rate limit."""
    left_out: int = 0
    """Number of skipped cycles before this one, in which only pending reasons changed."""


@dataclass(frozen=True, slots=True)
class UnreadableLine:
    """Line without a valid entry."""

    line: int
    why: str


class DecisionLog:
    """Log of each cycle with decisions or changed pending reasons, in a file or (`-`) on standard output.

    No decision is left out, and its input is complete: a file starts with a full snapshot, followed by changes.
    """

    def __init__(
        self,
        target: Path | str,
        *,
        max_bytes: int = MAX_FILE_BYTES,
        burst: float = BURST_BYTES,
        permit: Permit | None = None,
        clock: Clock = SYSTEM_CLOCK,
    ) -> None:
        self.lines: Final = open_log(str(target), name="decisions", max_bytes=max_bytes, permit=permit)
        self._burst = burst
        self._clock = clock
        self._budget, self._budget_time = burst, clock.monotonic()
        """Bytes that may be written, as of `_budget_time`."""
        self._skipped_cycles = 0
        self._logged_reasons: _LoggedReasons = (frozenset(), ())
        self._plans: Mapping[str, PreemptionPlan] = {}
        self._last_snapshot: Snapshot | None = None
        """Snapshot of the last line, to which the next line's changes refer."""
        self._snapshot_bytes = self._changes_bytes = 0
        """Bytes of the last line with a full snapshot, and of the lines since then."""

    def write_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> bool:
        """Write a cycle; return False if it is skipped.

        A cycle without changes is skipped; over the rate limit, so is a cycle in which only pending reasons changed.
        Without a snapshot, only the decisions are written.
        """
        has_actions = self._has_actions(snapshot, decisions)
        reasons = frozenset((hold.gang, hold.code.value) for hold in decisions.holds), decisions.losses
        if reasons == self._logged_reasons and not has_actions:
            return False
        omit_reasons = snapshot is None or not self._has_budget()
        if omit_reasons and not has_actions:
            self._skipped_cycles += 1
            return False
        if omit_reasons:
            decisions = replace(decisions, holds=())
        else:
            self._logged_reasons = reasons
        self._write_entry(
            LogEntry(time=now, decisions=decisions, holds_left_out=omit_reasons, left_out=self._skipped_cycles),
            snapshot,
        )
        return True

    def _write_entry(self, entry: LogEntry, snapshot: Snapshot | None) -> None:
        previous = (
            None
            if self.lines.is_empty or self._changes_bytes > _MAX_CHANGES_RATIO * self._snapshot_bytes
            else self._last_snapshot
        )
        if snapshot is not None and previous is not None:
            entry = msgspec.structs.replace(entry, changes=diff_snapshots(previous, snapshot))
        else:
            entry = msgspec.structs.replace(entry, snapshot=snapshot)
        line = encode_entry(entry)
        self._budget -= len(line)
        self._skipped_cycles = 0
        if not self.lines.append(line):
            self._last_snapshot = None
        elif snapshot is not None:
            self._last_snapshot = snapshot
            self._snapshot_bytes, self._changes_bytes = (
                (len(line), 0) if previous is None else (self._snapshot_bytes, self._changes_bytes + len(line))
            )

    def _has_budget(self) -> bool:
        now = self._clock.monotonic()
        self._budget, self._budget_time = (
            min(self._burst, self._budget + (now - self._budget_time) * BYTES_PER_SECOND),
            now,
        )
        return self._budget > 0

    def _has_actions(self, snapshot: Snapshot | None, decisions: Decisions) -> bool:
        previous, self._plans = self._plans, decisions.plans
        if snapshot is not None:
            previous = {gang.id: gang.plan for gang in snapshot.gangs if gang.plan is not None}
        has_decisions = decisions.admits or decisions.evicts or decisions.reprieves or decisions.promotes
        return bool(has_decisions) or dict(decisions.plans) != dict(previous)


def encode_entry(entry: LogEntry) -> bytes:
    """Return the entry as one line of JSON without the newline. Non-finite numbers cannot be encoded.

    Gangs and holds, up to a hundred thousand, are encoded one by one: encoding a whole cycle in one call would block
    other threads.
    """
    parts: dict[str, Any] = {"time": entry.time}
    if entry.snapshot is not None:
        parts["snapshot"] = _shallow_dict(entry.snapshot) | {"gangs": _encode_each(entry.snapshot.gangs)}
    if entry.changes is not None:
        parts["changes"] = msgspec.structs.asdict(entry.changes) | {"gangs": _encode_each(entry.changes.gangs)}
    parts["decisions"] = _shallow_dict(entry.decisions) | {"holds": _encode_each(entry.decisions.holds)}
    if entry.holds_left_out:
        parts["holds_left_out"] = True
    if entry.left_out:
        parts["left_out"] = entry.left_out
    return msgspec.json.encode(parts)


def _shallow_dict(of: Snapshot | Decisions) -> dict[str, Any]:
    return {field.name: getattr(of, field.name) for field in fields(of)}


def _encode_each(items: Iterable[object]) -> msgspec.Raw:
    one = msgspec.json.Encoder().encode
    return msgspec.Raw(b"[" + b",".join([one(item) for item in items]) + b"]")


def read_entries(path: Path) -> Iterator[LogEntry | UnreadableLine]:
    """Yield the entries of one file in order, and its unreadable lines.

    Changes after an unreadable line cannot be applied; these entries have no snapshot.

    Raises:
        OSError: the file cannot be read.
    """
    decode = msgspec.json.Decoder(LogEntry).decode
    last: Snapshot | None = None
    for number, line in enumerate(read_lines(path), start=1):
        try:
            entry = decode(line)
        except msgspec.DecodeError as error:
            last = None
            yield UnreadableLine(number, str(error))
            continue
        if entry.changes is not None:
            snapshot = apply_changes(last, entry.changes) if last is not None else None
            entry = msgspec.structs.replace(entry, snapshot=snapshot, changes=None)
            last = snapshot
        elif entry.snapshot is not None:
            last = entry.snapshot
        yield entry


log = structlog.get_logger(__name__)

_MAX_SNAPSHOTS: Final = 16
"""Maximum number of waiting cycles with snapshots; of further ones, only the decisions are logged."""

Write = Callable[[Snapshot | None, Decisions, float], None]


class Journal:
    """Writer of cycles: calls `write` for one cycle after another, in a thread, in the order of the decisions."""

    def __init__(self, write: Write) -> None:
        self._write = write
        self._cycles: deque[tuple[Snapshot | None, Decisions, float]] = deque()
        self._task: asyncio.Task[None] | None = None
        self._is_finished = False

    def add_cycle(self, snapshot: Snapshot, decisions: Decisions, now: float) -> None:
        """Log a cycle soon. Without effect after `finish`: the decisions are not carried out any more."""
        if self._is_finished:
            return
        self._cycles.append((snapshot if len(self._cycles) < _MAX_SNAPSHOTS else None, decisions, now))
        if self._task is None:
            self._task = asyncio.create_task(self._write_pending(), name="arbiter/journal")

    async def close(self) -> None:
        """Wait until all cycles are logged."""
        if self._task is not None:
            await self._task

    async def finish(self) -> None:
        """Wait until all cycles are logged, and log no further ones."""
        self._is_finished = True
        await self.close()

    async def _write_pending(self) -> None:
        try:
            while self._cycles:
                await self._write_cycle(*self._cycles.popleft())
        finally:
            self._task = None

    async def _write_cycle(self, snapshot: Snapshot | None, decisions: Decisions, now: float) -> None:
        try:
            await asyncio.to_thread(self._write, snapshot, decisions, now)
        except Exception:
            log.exception("scheduling cycle not logged")
