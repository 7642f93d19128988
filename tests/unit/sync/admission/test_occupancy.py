"""Sums of used resources by node and owner, updated as pods are added and removed."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.service.occupancy import Occupancy, Owner

GPU, CPU = "nvidia.com/gpu", "cpu"
OWNER = ("alpha", "a100")


def test_pods_of_one_node_are_summed() -> None:
    held = Occupancy()
    held.count_pod("a", node="n1", amounts={GPU: 1000, CPU: 500}, owner=OWNER)
    held.count_pod("b", node="n1", amounts={GPU: 2000})
    held.count_pod("c", node="n2", amounts={GPU: 4000}, owner=OWNER)

    assert held.used_on("n1") == {GPU: 3000, CPU: 500}
    assert held.used_on("n2") == {GPU: 4000}
    assert held.used_on("n3") == {}
    assert held.used_by(OWNER) == {GPU: 5000, CPU: 500}
    assert held.used_by(("beta", "a100")) == {}


def test_pod_without_scheduler_counts_only_for_its_owner() -> None:
    held = Occupancy()
    held.count_pod("a", node="", amounts={GPU: 1000}, owner=OWNER)

    assert held.used_by(OWNER) == {GPU: 1000}
    assert held.changed_nodes == set()

    held.count_pod("a", node="n1", amounts={GPU: 1000}, owner=OWNER)

    assert held.used_by(OWNER) == {GPU: 1000}
    assert held.used_on("n1") == {GPU: 1000}
    assert held.changed_nodes == {"n1"}


def test_pods_are_counted_by_the_selectors_that_select_them() -> None:
    held = Occupancy()
    held.count_pod("a", node="n1", amounts={CPU: 1000}, selectors=frozenset("xy"))
    held.count_pod("b", node="n1", amounts={}, selectors=frozenset("x"))
    assert held.peers_on("n1") == {"x": 2, "y": 1}
    held.changed_nodes.clear()

    held.count_pod("a", node="n1", amounts={CPU: 1000})
    assert held.peers_on("n1") == {"x": 1}
    assert held.changed_nodes == {"n1"}

    held.drop_pod("b")
    assert held.peers_on("n1") == held.peers_on("n2") == {}


def test_only_nodes_with_a_changed_sum_are_reported() -> None:
    held = Occupancy()
    held.count_pod("a", node="n1", amounts={GPU: 1000})
    held.count_pod("b", node="n2", amounts={GPU: 1000})
    held.changed_nodes.clear()

    held.count_pod("a", node="n1", amounts={GPU: 1000})
    held.drop_pod("nobody")
    assert held.changed_nodes == set()

    held.count_pod("a", node="n3", amounts={GPU: 1000})
    assert held.changed_nodes == {"n1", "n3"}


def test_removed_pods_leave_nothing() -> None:
    held = Occupancy()
    held.count_pod("a", node="n1", amounts={GPU: 1000, CPU: 0}, owner=OWNER)
    held.drop_pod("a")
    held.drop_pod("a")

    assert held.used_on("n1") == {}
    assert held.used_by(OWNER) == {}
    assert not held._nodes
    assert not held._owners
    assert not held._allocations


def test_returned_sum_is_a_copy() -> None:
    held = Occupancy()
    held.count_pod("a", node="n1", amounts={GPU: 1000})
    held.used_on("n1")[GPU] = 7

    assert held.used_on("n1") == {GPU: 1000}


_AMOUNTS = st.dictionaries(st.sampled_from([GPU, CPU]), st.integers(0, 8000))
_HOLDINGS = st.tuples(
    st.sampled_from("abcd"),
    st.none()
    | st.tuples(
        st.sampled_from(["", "n1", "n2"]),
        _AMOUNTS,
        st.sampled_from([None, OWNER, ("beta", "a100")]),
    ),
)


@given(st.lists(_HOLDINGS, max_size=30))
def test_sums_match_the_current_pods(
    steps: list[tuple[str, tuple[str, MilliResources, Owner | None] | None]],
) -> None:
    held = Occupancy()
    now: dict[str, tuple[str, MilliResources, Owner | None]] = {}
    for uid, holding in steps:
        before = _sum_by_node(now)
        held.changed_nodes.clear()
        if holding is None:
            now.pop(uid, None)
            held.drop_pod(uid)
        else:
            node, amounts, owner = now[uid] = holding
            held.count_pod(uid, node=node, amounts=amounts, owner=owner)
        after = _sum_by_node(now)
        assert {node for node in ("n1", "n2") if before[node] != after[node]} <= held.changed_nodes
        assert {node: held.used_on(node) for node in ("n1", "n2")} == after
        for owner in (OWNER, ("beta", "a100")):
            assert held.used_by(owner) == _sum_resources(
                amounts for _, amounts, whose in now.values() if whose == owner
            )
        assert all(held._nodes.values())


def _sum_by_node(now: dict[str, tuple[str, MilliResources, Owner | None]]) -> dict[str, MilliResources]:
    return {name: _sum_resources(amounts for node, amounts, _ in now.values() if node == name) for name in ("n1", "n2")}


def _sum_resources(lists: object) -> MilliResources:
    total: Counter[str] = Counter()
    for amounts in lists:  # type: ignore[attr-defined]
        total.update(amounts)
    return {name: value for name, value in total.items() if value}
