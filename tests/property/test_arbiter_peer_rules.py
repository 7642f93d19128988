"""Hard constraints about other pods: the arbiter permits what kube-scheduler permits, and finds each placement."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.kube_filters import Peer, permits
from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import count_placeable, place_pods
from vkgateway.scheduler.core.peer_rules import NO_MINIMUM, VIRTUAL_NODE, PeerRules, PeerTerm, SpreadRule
from vkgateway.scheduler.core.snapshot import Node, Pod, Pool, Requirement, Shape

GPU = "nvidia.com/gpu"
patient = settings(max_examples=200, deadline=None)
HOST, RACK = "host", "rack"
SELECTORS = ("a", "b")
GPU_NODES = (Requirement(key="kind", operator="In", values=("gpu",)),)

selected_by = st.frozensets(st.sampled_from(SELECTORS))
keys = st.sampled_from([HOST, RACK, VIRTUAL_NODE])
terms = st.lists(st.builds(PeerTerm, st.sampled_from(SELECTORS), keys), max_size=2).map(tuple)
spread_rules = st.lists(
    st.builds(
        SpreadRule,
        peers=st.sampled_from(SELECTORS),
        topology_key=st.sampled_from([HOST, RACK]),
        max_skew=st.integers(1, 2),
        min_domains=st.sampled_from([1, 2, 3, NO_MINIMUM]),
        honors_taints=st.booleans(),
    ),
    max_size=2,
).map(tuple)
affinities = st.one_of(
    st.just(("", ())),
    st.tuples(st.sampled_from(SELECTORS), st.sampled_from([(HOST,), (RACK,), (HOST, RACK)])),
)


@st.composite
def peer_rules(draw: st.DrawFn) -> PeerRules:
    affinity, affinity_keys = draw(affinities)
    return PeerRules(
        selected_by=draw(selected_by),
        affinity=affinity,
        affinity_keys=affinity_keys,
        anti_affinity=draw(terms) if draw(st.booleans()) else (),
        spread=draw(spread_rules),
    )


@st.composite
def pools(draw: st.DrawFn, *, size: int = 9) -> tuple[Node, ...]:
    """Return nodes of which some lack a label, are closed, or belong to the nodes without GPUs."""
    nodes = []
    for index in range(draw(st.integers(1, 4))):
        labels = {HOST: f"n{index}", RACK: f"r{draw(st.integers(0, 1))}", "kind": draw(st.sampled_from(["gpu", "cpu"]))}
        if draw(st.integers(0, 4)) == 0:
            del labels[draw(st.sampled_from([HOST, RACK]))]
        tainted = draw(st.integers(0, 4)) == 0
        nodes.append(
            Node(
                name=f"n{index}",
                allocatable={GPU: draw(st.integers(0, size)) * 1000},
                labels=labels,
                taints=(Taint(key="closed", effect="NoSchedule"),) if tainted else (),
                usable=draw(st.integers(0, 4)) > 0,
            )
        )
    return tuple(nodes)


def make_resources(nodes: Sequence[Node], peers: Sequence[Peer] = ()) -> NodeResources:
    resources = NodeResources(Pool(key=("compute", "pool"), nodes=tuple(nodes), governed=(GPU,)))
    resources.add_many((peer.node, Shape((), peers=peer.rules)) for peer in peers)
    return resources


def draw_peers(data: st.DataObject, nodes: Sequence[Node], rules: st.SearchStrategy[PeerRules]) -> list[Peer]:
    names = st.sampled_from([node.name for node in nodes])
    return data.draw(st.lists(st.builds(Peer, names, rules), max_size=5))


@patient
@given(nodes=pools(), data=st.data(), rules=peer_rules())
def test_nodes_are_permitted_as_by_kube_scheduler(
    nodes: tuple[Node, ...], data: st.DataObject, rules: PeerRules
) -> None:
    peers = draw_peers(data, nodes, peer_rules())
    resources = make_resources(nodes, peers)
    shape = Shape(((GPU, 1000),), terms=data.draw(st.sampled_from([(), (GPU_NODES,)])), peers=rules)
    permitted = resources.permitted_nodes(shape)
    assert permitted is not None
    found = {name for name, is_permitted in zip(resources.nodes.names, permitted, strict=True) if is_permitted}
    assert found == {node.name for node in nodes if permits(shape, node, nodes, peers)}


@patient
@given(nodes=pools(), data=st.data())
def test_undo_leads_back_and_copies_are_independent(nodes: tuple[Node, ...], data: st.DataObject) -> None:
    peers, more = (draw_peers(data, nodes, peer_rules()) for _ in range(2))
    resources = make_resources(nodes, peers)
    shape = Shape((), peers=data.draw(peer_rules()))
    before, copied = resources.permitted_nodes(shape), resources.copy()
    with resources.trial():
        resources.add_many((peer.node, Shape((), peers=peer.rules)) for peer in more)
        resources.remove_many((peer.node, Shape((), peers=peer.rules)) for peer in peers)
    assert before is not None
    assert (before == resources.permitted_nodes(shape)).all()
    resources.add_many((peer.node, Shape((), peers=peer.rules)) for peer in more)
    assert (before == copied.permitted_nodes(shape)).all()


@patient
@given(nodes=pools(size=3), data=st.data(), rules=st.lists(peer_rules(), min_size=1, max_size=3))
def test_gang_is_placed_only_in_an_order_that_kube_scheduler_permits(
    nodes: tuple[Node, ...], data: st.DataObject, rules: list[PeerRules]
) -> None:
    peers = draw_peers(data, nodes, peer_rules())
    pods = [
        Pod(uid=f"p{index}", shape=Shape(((GPU, 1000),), peers=each), rank=index) for index, each in enumerate(rules)
    ]
    resources = make_resources(nodes, peers)
    found = place_pods(resources, pods)
    if found is None:
        assert make_resources(nodes, peers).free.amounts_of(GPU).tolist() == resources.free.amounts_of(GPU).tolist()
    else:
        assert can_place(nodes, peers, [(pod.shape, found[pod.uid]) for pod in pods])
        assert resources.keep_peer_rules((found[pod.uid], pod.shape) for pod in pods)


@patient
@given(
    nodes=pools(size=3), data=st.data(), count=st.integers(1, 4), kind=st.sampled_from(["spread", "anti", "affinity"])
)
def test_equal_pods_with_one_constraint_are_placed_if_any_order_permits_it(
    nodes: tuple[Node, ...], data: st.DataObject, count: int, kind: str
) -> None:
    rules = PeerRules(selected_by=data.draw(selected_by))
    key = data.draw(st.sampled_from([HOST, RACK]))
    if kind == "spread":
        rule = SpreadRule(peers="a", topology_key=key, max_skew=data.draw(st.integers(1, 2)))
        rules = replace(rules, spread=(rule,))
    elif kind == "anti":
        rules = replace(rules, anti_affinity=(PeerTerm("a", key),))
    else:
        rules = replace(rules, affinity="a", affinity_keys=(key,))
    peers = draw_peers(data, nodes, st.builds(PeerRules, selected_by=selected_by))
    pods = [Pod(uid=f"p{index}", shape=Shape(((GPU, 1000),), peers=rules), rank=index) for index in range(count)]
    resources = make_resources(nodes, peers)
    number = count_placeable(resources, pods)
    assert (place_pods(resources, pods) is not None) == is_placeable(nodes, peers, pods[0].shape, count)
    assert kind == "affinity" or (number == count) == is_placeable(nodes, peers, pods[0].shape, count)


def can_place(nodes: Sequence[Node], peers: Sequence[Peer], placed: Sequence[tuple[Shape, str]]) -> bool:
    """Return whether pods can come to these nodes one after the other."""
    if not placed:
        return True
    by_name = {node.name: node for node in nodes}
    return any(
        has_capacity(by_name[name], peers)
        and permits(shape, by_name[name], nodes, peers)
        and can_place(nodes, with_peer(peers, name, shape), [*placed[:index], *placed[index + 1 :]])
        for index, (shape, name) in enumerate(placed)
    )


def is_placeable(nodes: Sequence[Node], peers: Sequence[Peer], shape: Shape, count: int) -> bool:
    """Return whether this number of equal pods can be placed, wherever."""
    return count == 0 or any(
        has_capacity(node, peers)
        and permits(shape, node, nodes, peers)
        and is_placeable(nodes, with_peer(peers, node.name, shape), shape, count - 1)
        for node in nodes
    )


def with_peer(peers: Sequence[Peer], name: str, shape: Shape) -> list[Peer]:
    """Return the peers and one more, which uses a GPU."""
    assert shape.peers is not None
    return [*peers, GpuPeer(name, shape.peers)]


class GpuPeer(Peer):
    """A peer that uses a GPU."""


def has_capacity(node: Node, peers: Sequence[Peer]) -> bool:
    used = sum(isinstance(peer, GpuPeer) and peer.node == node.name for peer in peers)
    return node.usable and not node.taints and node.allocatable[GPU] > used * 1000
