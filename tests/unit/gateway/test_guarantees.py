"""Tests of the guarantee monitor."""

from __future__ import annotations

from dataclasses import replace

from tests.unit.arbiter.simulated_cluster import GPU, KEY, Cluster, make_node, make_quota
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.clusters.status import Verdict
from vkgateway.scheduler.backends.guarantee import guarantee_losses
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.tenants.guarantees import GUARANTEE_SATISFIED, GuaranteeMonitor


def heard(there: Cluster, guarantees: GuaranteeMonitor) -> None:
    snapshot = there.snapshot()
    guarantees.cycle_decided(snapshot, decide(snapshot, there.now, there.cache))


def cordon(there: Cluster, *names: str) -> None:
    nodes = (replace(each, usable=each.name not in names) for each in there.pool.nodes)
    there.pool = replace(there.pool, nodes=tuple(nodes))


def test_reduced_guarantee_is_reported_until_node_returns() -> None:
    there = Cluster(
        [make_node("n0"), make_node("n1"), make_node("n2")], [make_quota("a", 16), make_quota("b", 8, weight=9.0)]
    )
    woken: list[str] = []
    guarantees = GuaranteeMonitor(on_change=woken.append)
    assert guarantees.verdict_for("a") is None
    heard(there, guarantees)
    assert (guarantees.verdict_for("a"), guarantees.verdict_for("b"), woken) == (
        GUARANTEE_SATISFIED,
        GUARANTEE_SATISFIED,
        ["a", "b"],
    )

    cordon(there, "n1")
    heard(there, guarantees)
    heard(there, guarantees)
    verdict = guarantees.verdict_for("a")
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "NodesMissing")
    assert verdict.message == f"pool.compute: {GPU} 16 -> 8, cells 2x8 -> 8; 2 of 3 nodes usable"
    assert (guarantees.verdict_for("b"), woken) == (GUARANTEE_SATISFIED, ["a", "b", "a"])

    cordon(there)
    heard(there, guarantees)
    assert (guarantees.verdict_for("a"), woken) == (GUARANTEE_SATISFIED, ["a", "b", "a", "a"])


def test_verdict_is_kept_while_cluster_is_unreachable() -> None:
    there, guarantees = Cluster([make_node("n0"), make_node("n1")], [make_quota("a", 16)]), GuaranteeMonitor()
    silent = replace(there.snapshot(), pools=())
    guarantees.cycle_decided(silent, Decisions())
    assert guarantees.verdict_for("a") is None
    cordon(there, "n0", "n1")
    heard(there, guarantees)
    before = guarantees.verdict_for("a")
    assert before is not None
    assert "cells 2x8 -> none; 0 of 2 nodes" in before.message
    guarantees.cycle_decided(silent, Decisions())
    assert guarantees.verdict_for("a") == before


def test_unmanaged_pods_are_named_as_reason() -> None:
    there, guarantees = Cluster([replace(make_node("n0"), used={GPU: 4000})], [make_quota("a", 8)]), GuaranteeMonitor()
    heard(there, guarantees)
    verdict = guarantees.verdict_for("a")
    assert verdict is not None
    assert verdict.message.endswith("8 -> 4, cells 8 -> 4; 1 of 1 nodes usable, partly used by unmanaged pods")


def test_guarantees_of_another_scheduler_are_sums() -> None:
    """Cells of 8 would not fit the nodes of 4."""
    nodes = tuple(make_node(f"n{index}", 4) for index in range(4))
    there = Cluster(nodes, [replace(make_quota("a", 8), granted=1.0), replace(make_quota("b", 6), granted=2.0)])
    guarantees = GuaranteeMonitor()
    assert sum_verdicts(there, guarantees) == (GUARANTEE_SATISFIED, GUARANTEE_SATISFIED)

    cordon(there, "n0")
    kept, reduced = sum_verdicts(there, guarantees)
    assert kept == GUARANTEE_SATISFIED
    assert reduced is not None
    assert (reduced.status, reduced.reason) == ("False", "NodesMissing")
    assert reduced.message == f"pool.compute: {GPU} 6 -> 4; 3 of 4 nodes usable"

    there.pool = replace(there.pool, nodes=tuple(replace(node, used={GPU: 1500}) for node in nodes))
    _, reduced = sum_verdicts(there, guarantees)
    assert reduced is not None
    assert reduced.message == f"pool.compute: {GPU} 6 -> 2; 4 of 4 nodes usable, partly used by unmanaged pods"


def test_queues_of_an_administrator_keep_no_guarantee() -> None:
    there = Cluster([make_node("n0")], [make_quota("a", 16), make_quota("b")])
    guarantees = GuaranteeMonitor(unmanaged_pools=lambda: {KEY})
    verdict, without = sum_verdicts(there, guarantees, manage_queues=False)
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("Unknown", "QueuesNotManaged")
    assert "pool.compute" in verdict.message
    assert without == GUARANTEE_SATISFIED


def sum_verdicts(
    there: Cluster, guarantees: GuaranteeMonitor, *, manage_queues: bool = True
) -> tuple[Verdict | None, Verdict | None]:
    """Return the verdicts on the tenants a and b after a cycle of a pool in the mode kueue."""
    snapshot = replace(there.snapshot(), pools=(there.pool,))
    spec = PoolSpec(name=KEY[1], scheduling=PoolScheduling(mode="kueue", manage_queues=manage_queues))
    guarantees.cycle_decided(snapshot, Decisions(losses=tuple(guarantee_losses(snapshot, {KEY: spec}))))
    return guarantees.verdict_for("a"), guarantees.verdict_for("b")
