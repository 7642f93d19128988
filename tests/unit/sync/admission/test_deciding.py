"""The decision module is loaded only when there is something to decide or a guarantee to reduce."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tests.unit.arbiter.simulated_cluster import GPU, Cluster, make_gang, make_node, make_quota
from vkgateway.scheduler.core import cycle
from vkgateway.scheduler.core.cache import Cache
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.snapshot import Gang, Node, Snapshot
from vkgateway.scheduler.service.arbitration import incremental_decide


@pytest.mark.parametrize(
    ("nodes", "gangs", "decided"),
    [
        ([make_node("n0"), make_node("n1")], [], 0),
        ([make_node("n0"), make_node("n1", usable=False)], [], 2),
        ([make_node("n0")], [], 2),
        ([make_node("n0"), replace(make_node("n1"), used={GPU: 1000})], [], 2),
        ([make_node("n0"), make_node("n1")], [make_gang("x", "a", [1])], 2),
    ],
)
def test_module_is_not_loaded_without_need(
    monkeypatch: pytest.MonkeyPatch, nodes: list[Node], gangs: list[Gang], decided: int
) -> None:
    calls, real = [], cycle.decide

    def counted(snapshot: Snapshot, now: float, carry: Cache | None = None) -> Decisions:
        calls.append(now)
        return real(snapshot, now, carry)

    monkeypatch.setattr(cycle, "decide", counted)
    snapshot = Cluster(nodes, [make_quota("a", 16)], gangs).snapshot()
    decide = incremental_decide()
    assert bool(decide(snapshot, 1.0).losses) == (decided > 0 and not gangs)
    decide(replace(snapshot, gangs=()), 2.0)  # after the first load, skipping the call saves nothing
    assert len(calls) == decided
