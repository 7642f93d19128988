"""Tests of the decision log."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.clock import FakeClock
from tests.unit.arbiter.simulated_cluster import GPU, KEY, LOW, Cluster, make_gang, make_node, make_quota
from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.snapshot import (
    Band,
    Gang,
    Node,
    Pod,
    PodState,
    Policy,
    Pool,
    PreemptionPlan,
    Quota,
    Requirement,
    Shape,
    Snapshot,
    Toleration,
)
from vkgateway.scheduler.service.decisionlog import (
    DecisionLog,
    LogEntry,
    UnreadableLine,
    apply_changes,
    diff_snapshots,
    read_entries,
)

names = st.sampled_from(["", "a", "b.c/d-e", "nächste\n", '"\\\x00'])
seconds = st.floats(allow_nan=False, allow_infinity=False)
amounts = st.dictionaries(names, st.integers(-(2**62), 2**62), max_size=3)
keys = st.tuples(names, names)
tuples = st.lists(names, max_size=2).map(tuple)
shapes = st.builds(
    Shape,
    requests=st.lists(st.tuples(names, st.integers(0, 2**62)), max_size=2).map(tuple),
    terms=st.lists(
        st.lists(st.builds(Requirement, key=names, operator=names, values=tuples), max_size=2).map(tuple), max_size=2
    ).map(tuple),
    tolerations=st.lists(st.builds(Toleration, key=names, value=names), max_size=2).map(tuple),
    images=st.frozensets(names, max_size=2),
)
nodes = st.builds(
    Node,
    name=names,
    allocatable=amounts,
    used=amounts,
    labels=st.dictionaries(names, names, max_size=2),
    taints=st.lists(st.builds(Taint, key=names, effect=names), max_size=2).map(tuple),
    images=st.frozensets(names, max_size=2),
    usable=st.booleans(),
)
pods = st.builds(
    Pod,
    uid=names,
    shape=shapes,
    state=st.sampled_from(list(PodState)),
    pool=st.none() | keys,
    since=seconds,
    borrowed=st.booleans(),
    limit_reached=st.booleans(),
)
plans = st.builds(PreemptionPlan, pool=keys, nodes=st.dictionaries(names, names, max_size=2), borrowed=st.booleans())
gangs = st.builds(
    Gang,
    id=names,
    tenant=names,
    pods=st.lists(pods, max_size=2).map(tuple),
    pools=st.lists(keys, max_size=2).map(tuple),
    band=st.sampled_from(list(Band)),
    role_minimum=st.dictionaries(names, st.integers(), max_size=2),
    run_limit=st.none() | seconds,
    created=seconds,
    maximum=st.none() | st.integers(),
    plan=st.none()
    | st.builds(PreemptionPlan, pool=keys, nodes=st.dictionaries(names, names, max_size=2), borrowed=st.booleans()),
)
snapshots = st.builds(
    Snapshot,
    pools=st.lists(
        st.builds(
            Pool,
            key=keys,
            nodes=st.lists(nodes, max_size=2).map(tuple),
            governed=tuples,
            levels=tuples,
            enforces_limits=st.booleans(),
            default_limits=st.dictionaries(st.sampled_from(list(Band)), seconds),
        ),
        max_size=2,
    ).map(tuple),
    quotas=st.lists(
        st.builds(Quota, tenant=names, pool=keys, guarantee=amounts, weight=seconds, granted=seconds), max_size=2
    ).map(tuple),
    gangs=st.lists(gangs, max_size=2).map(tuple),
    policy=st.builds(Policy, age_cap=seconds, half_life=seconds),
    past_shares=st.lists(
        st.builds(PastShare, tenant=names, pool=keys, average=seconds, share=seconds, at=seconds), max_size=2
    ).map(tuple),
)


def story(half_life: float = 0.0) -> Cluster:
    """Return a cluster in which low work fills the pool, a guaranteed gang arrives, and another gang waits."""
    nodes = [make_node(f"n{at}") for at in range(3)]
    there = Cluster(nodes, [make_quota("a", 16), make_quota("b", limit=24)], policy=Policy(half_life=half_life))
    there.add(make_gang("b/ns/gang/low", "b", [4, 4, 4, 4], band=LOW, minimum=2, elastic=True))
    return there


@pytest.mark.parametrize("half_life", [0.0, 60.0])
@pytest.mark.parametrize("enforces", [False, True])
def test_replayed_cycles_have_same_decisions(tmp_path: Path, *, enforces: bool, half_life: float) -> None:
    file = tmp_path / "decisions.jsonl"
    log, there = DecisionLog(file), story(half_life)
    if enforces:
        there.enforce_limits(low=100.0)
    written = []
    for second in range(40):
        if second == 5:
            there.add(make_gang("a/ns/gang/in", "a", [8, 8], run_limit=12.5))
            there.add(make_gang("b/ns/gang/wide", "b", [8, 8, 8]), make_gang("b/ns/gang/never", "b", [9]))
        snapshot = there.snapshot()
        decisions = decide(snapshot, there.now)
        if log.write_cycle(snapshot, decisions, there.now):
            written.append(LogEntry(time=there.now, snapshot=snapshot, decisions=decisions))
        there.cycle()
        there.advance(1.1)

    entries = list(read_entries(file))

    assert entries == written
    assert len(entries) < 20
    assert any(evict.reached_limit == 12.5 for found in written for evict in found.decisions.evicts) is enforces
    assert any(found.decisions.evicts for found in written)
    assert all(bool(found.snapshot and found.snapshot.past_shares) == bool(half_life) for found in written[1:])
    assert any("a/ns/gang/in" in found.decisions.plans for found in written)
    assert any(admit.gang == "a/ns/gang/in" for found in written for admit in found.decisions.admits)
    for entry in entries:
        assert isinstance(entry, LogEntry)
        assert entry.snapshot is not None
        assert decide(entry.snapshot, entry.time) == entry.decisions


@given(snapshots, seconds)
@settings(max_examples=40, deadline=None)
def test_snapshots_survive_round_trip(tmp_path_factory: object, snapshot: Snapshot, now: float) -> None:
    file = tmp_path_factory.mktemp("log") / "decisions.jsonl"  # type: ignore[attr-defined]
    log = DecisionLog(file)
    decisions = Decisions(plans={"x": PreemptionPlan(pool=KEY, nodes={"u": "n"}, borrowed=True)})
    assert log.write_cycle(snapshot, decisions, now)
    assert list(read_entries(file)) == [LogEntry(time=now, snapshot=snapshot, decisions=decisions)]


def test_mappings_keep_their_order(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    first = replace(story().snapshot(), gangs=())
    allocatable = {"z": 1, GPU: 2, "a": 3}
    pool = replace(first.pools[0], nodes=(Node(name="n", allocatable=allocatable),))
    plans = {"x": PreemptionPlan(pool=KEY, nodes={}, borrowed=False)}
    DecisionLog(file).write_cycle(replace(first, pools=(pool,)), Decisions(plans=plans), 1.0)
    (entry,) = read_entries(file)
    assert isinstance(entry, LogEntry)
    assert entry.snapshot is not None
    assert list(entry.snapshot.pools[0].nodes[0].allocatable) == list(allocatable)


def test_only_changed_past_shares_are_logged() -> None:
    before = replace(story(60.0).snapshot(), past_shares=tuple(past(tenant, 0.5) for tenant in "abc"))
    after = replace(before, past_shares=(before.past_shares[0], past("b", 0.6), past("d", 0.1)))
    changes = diff_snapshots(before, after)
    assert [share.tenant for share in changes.past_shares] == ["b", "d"]
    assert changes.gone_past_shares == (("c", KEY),)
    assert apply_changes(before, changes) == after


def past(tenant: str, average: float) -> PastShare:
    return PastShare(tenant=tenant, pool=KEY, average=average, share=0.0, at=1.0)


def test_cycles_without_changes_are_skipped(tmp_path: Path) -> None:
    log, there = DecisionLog(tmp_path / "decisions.jsonl"), story()
    there.run_for(10)
    there.add(make_gang("b/ns/gang/never", "b", [9]))

    def cycle() -> bool:
        snapshot = there.snapshot()
        return log.write_cycle(snapshot, decide(snapshot, there.now), there.now)

    assert [cycle(), cycle(), cycle()] == [True, False, False]
    there.add(make_gang("b/ns/gang/more", "b", [9]))
    assert [cycle(), cycle()] == [True, False]


def test_rate_limited_cycles_omit_pending_reasons(tmp_path: Path) -> None:
    clock = FakeClock()
    log = DecisionLog(tmp_path / "decisions.jsonl", burst=1500, clock=clock)
    there = story()
    there.add(make_gang("b/ns/gang/never", "b", [9]))
    snapshot = there.snapshot()
    decisions = decide(snapshot, 1.0)
    reasons = Decisions(holds=decisions.holds)
    assert decisions.admits
    written = [log.write_cycle(snapshot, each, 1.0) for each in (decisions, decisions, reasons, Decisions(), decisions)]
    clock.seconds = 60.0
    written.append(log.write_cycle(snapshot, decisions, 2.0))
    assert written == [True, True, False, False, True, True]
    bare = LogEntry(time=1.0, snapshot=snapshot, decisions=replace(decisions, holds=()), holds_left_out=True)
    assert list(read_entries(tmp_path / "decisions.jsonl")) == [
        LogEntry(time=1.0, snapshot=snapshot, decisions=decisions),
        bare,
        msgspec.structs.replace(bare, left_out=1),
        LogEntry(time=2.0, snapshot=snapshot, decisions=decisions),
    ]


def test_decisions_without_snapshot_are_logged(tmp_path: Path) -> None:
    log, there = DecisionLog(tmp_path / "decisions.jsonl"), story()
    decisions = decide(there.snapshot(), 1.0)
    plans = Decisions(plans={"x": PreemptionPlan(pool=KEY, nodes={}, borrowed=False)}, holds=decisions.holds)
    written = [log.write_cycle(None, each, 1.0) for each in (decisions, plans, plans, Decisions(), Decisions())]
    assert written == [True, True, False, True, False]
    assert {entry.snapshot for entry in read_entries(tmp_path / "decisions.jsonl") if isinstance(entry, LogEntry)} == {
        None
    }


def line_kinds(file: Path) -> list[tuple[bool, bool]]:
    """Return for each line whether it has a full snapshot, and whether it has changes."""
    lines = [msgspec.json.decode(line) for line in file.read_bytes().splitlines()]
    return [("snapshot" in line, "changes" in line) for line in lines]


def cycles(log: DecisionLog, count: int, *, there: Cluster | None = None) -> list[LogEntry]:
    """Log this many cycles with changes and return the expected entries."""
    there = there or story()
    found = []
    for number in range(count):
        there.add(make_gang(f"b/ns/gang/{there.now}", "b", [9 + number % 3]))
        snapshot = there.snapshot()
        decisions = decide(snapshot, there.now)
        assert log.write_cycle(snapshot, decisions, there.now)
        found.append(LogEntry(time=there.now, snapshot=snapshot, decisions=decisions))
        there.cycle()
        if number % 5 == 3:
            del there.gangs[sorted(there.gangs)[-1]]
        if number % 7 == 2:
            there.pool = replace(there.pool, nodes=(*there.pool.nodes[:-1], make_node("n2", usable=number % 2 == 0)))
        if number % 11 == 6:
            there.pool = replace(there.pool, nodes=(*there.pool.nodes, make_node(f"more{number}")))
            there.quotas = (*there.quotas, make_quota(f"t{number}"))
        there.advance(1)
    return found


def test_log_starts_with_full_snapshot_followed_by_changes(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    written = cycles(DecisionLog(file), 6)
    assert line_kinds(file) == [(True, False)] + [(False, True)] * 5
    assert list(read_entries(file)) == written


def test_large_changes_trigger_full_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    written = cycles(DecisionLog(file), 60)
    assert 2 <= sum(whole for whole, _ in line_kinds(file)) < 20
    assert list(read_entries(file)) == written


def test_each_rotated_file_is_self_contained(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    written = cycles(DecisionLog(file, max_bytes=40_000), 30)
    files = sorted(tmp_path.glob("decisions.jsonl.*"), reverse=True)
    assert len(files) > 1
    assert [entry for each in [*files, file] if each.exists() for entry in read_entries(each)] == written


def test_full_snapshot_follows_restart_and_failed_write(tmp_path: Path) -> None:
    file = tmp_path / "folder" / "decisions.jsonl"
    there, log = story(), DecisionLog(file)
    first = cycles(log, 2, there=there)
    file.rename(tmp_path / "aside")
    file.parent.rmdir()
    file.parent.write_text("in the way")
    cycles(log, 1, there=there)
    file.parent.unlink()
    file.parent.mkdir()
    (tmp_path / "aside").rename(file)
    again = cycles(log, 2, there=there)
    restarted = cycles(DecisionLog(file), 2, there=there)
    assert line_kinds(file) == [(True, False), (False, True)] * 3
    assert list(read_entries(file)) == first + again + restarted


def test_changes_after_unreadable_line_have_no_snapshot(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    there = story()
    first = cycles(DecisionLog(file), 3, there=there)
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(lines[0] + lines[1][:40] + b"\n" + lines[2])
    restarted = cycles(DecisionLog(file), 2, there=there)
    whole, torn, bare, *rest = read_entries(file)
    assert [whole, *rest] == [first[0], *restarted]
    assert isinstance(torn, UnreadableLine)
    assert bare == msgspec.structs.replace(first[2], snapshot=None)


def test_reduced_guarantee_is_logged(tmp_path: Path) -> None:
    log, there = (
        DecisionLog(tmp_path / "decisions.jsonl"),
        Cluster([make_node("n0"), make_node("n1", usable=False)], []),
    )
    there.quotas = (make_quota("a", 16),)
    snapshot = there.snapshot()
    decisions = decide(snapshot, 1.0)
    assert decisions.losses
    assert [log.write_cycle(snapshot, decisions, 1.0) for _ in range(2)] == [True, False]
    (entry,) = read_entries(tmp_path / "decisions.jsonl")
    assert entry == LogEntry(time=1.0, snapshot=snapshot, decisions=decisions)


def test_unreadable_lines_are_reported(tmp_path: Path) -> None:
    file = tmp_path / "decisions.jsonl"
    log, there = DecisionLog(file), story()
    log.write_cycle(there.snapshot(), decide(there.snapshot(), there.now), there.now)
    with file.open("ab") as more:
        more.write(b'{"time": 1.0}\n\n{"time": 2')
    first, second = read_entries(file)
    assert isinstance(first, LogEntry)
    assert isinstance(second, UnreadableLine)
    assert second.line == 2
    assert "decisions" in second.why
