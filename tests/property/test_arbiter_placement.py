"""Placement over random nodes and gangs: no overcommit, all or none, and no better placement exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import count_placeable, place_pods
from vkgateway.scheduler.core.snapshot import Node, Pod, Pool, Requirement, Shape

GPU = "nvidia.com/gpu"
patient = settings(max_examples=80, deadline=None)

free_gpus = st.integers(0, 8)
racks = st.lists(st.lists(free_gpus, min_size=1, max_size=4), min_size=1, max_size=4)
sizes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=7)
levels = st.sampled_from(["", "rack", "host"])


def resources_of(racks: Sequence[Sequence[int]]) -> NodeResources:
    nodes = tuple(
        Node(
            name=f"{rack}-{index}",
            allocatable={GPU: 8000},
            used={GPU: (8 - free) * 1000},
            labels={"rack": str(rack), "host": f"{rack}-{index}"},
        )
        for rack, all_free in enumerate(racks)
        for index, free in enumerate(all_free)
    )
    return NodeResources(Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=("rack", "host")))


def make_pods(sizes: Sequence[int]) -> list[Pod]:
    return [
        Pod(uid=str(index), shape=Shape.from_requests({GPU: size * 1000}), rank=index)
        for index, size in enumerate(sizes)
    ]


def fits_brute_force(free: list[int], sizes: list[int]) -> bool:
    """Return whether the pods (largest first) fit, by trying all assignments."""
    if not sizes:
        return True
    for index in {resources: index for index, resources in enumerate(free) if resources >= sizes[0]}.values():
        if fits_brute_force([*free[:index], free[index] - sizes[0], *free[index + 1 :]], sizes[1:]):
            return True
    return False


def domains_at(racks: Sequence[Sequence[int]], level: str) -> list[list[int]]:
    if level == "rack":
        return [list(free) for free in racks]
    every = [free for rack in racks for free in rack]
    return [every] if level == "" else [[free] for free in every]


def free_units(resources: NodeResources) -> list[int]:
    return [resources.free.amounts_on(name)[GPU] // 1000 for name in resources.nodes.names]


@patient
@given(racks, sizes, levels)
def test_placement_is_found_exactly_if_one_exists(cluster: list[list[int]], wanted: list[int], level: str) -> None:
    resources = resources_of(cluster)
    before = free_units(resources)
    found = place_pods(resources, make_pods(wanted), required_level=level)
    largest_first = sorted(wanted, reverse=True)
    assert (found is not None) == any(fits_brute_force(domain, largest_first) for domain in domains_at(cluster, level))
    if found is None:
        assert free_units(resources) == before
        return
    assert list(found) == [pod.uid for pod in make_pods(wanted)]
    used: Counter[str] = Counter()
    for pod, size in zip(found, wanted, strict=True):
        used[found[pod]] += size
    assert free_units(resources) == [
        room_ - used[name] for room_, name in zip(before, resources.nodes.names, strict=True)
    ]
    assert min(free_units(resources)) >= 0
    if level:
        labels = {node.name: node.labels[level] for node in resources.nodes.ordered}
        assert len({labels[name] for name in found.values()}) == 1


@patient
@given(racks, st.integers(1, 12), st.sampled_from([1, 2, 4, 8]))
def test_whole_nodes_stay_whole(cluster: list[list[int]], count: int, size: int) -> None:
    resources = resources_of(cluster)
    if place_pods(resources, make_pods([size] * count)) is None:
        return
    whole = sum(rooms == 8 for rack in cluster for rooms in rack)
    in_use = sum(rooms // size for rack in cluster for rooms in rack if rooms < 8)
    needed = -(-max(0, count - in_use) * size // 8)
    assert sum(rooms == 8 for rooms in free_units(resources)) == whole - needed


@patient
@given(racks, st.integers(1, 12), st.sampled_from([1, 2, 3, 8]))
def test_preferred_level_uses_fewest_domains(cluster: list[list[int]], count: int, size: int) -> None:
    resources = resources_of(cluster)
    found = place_pods(resources, make_pods([size] * count), preferred_level="rack")
    assert (found is None) == (place_pods(resources_of(cluster), make_pods([size] * count)) is None)
    if found is None:
        return
    fits = [sum(rooms // size for rooms in rack) for rack in cluster]
    fewest = next(
        few for few in range(1, len(cluster) + 1) if any(sum(chosen) >= count for chosen in combinations(fits, few))
    )
    assert len({name.split("-")[0] for name in found.values()}) == fewest
    order = [resources.nodes.positions[found[pod.uid]] for pod in make_pods([size] * count)]
    assert order == sorted(order)


@patient
@given(racks, sizes)
def test_preferred_level_never_prevents_placement(cluster: list[list[int]], wanted: list[int]) -> None:
    resources = resources_of(cluster)
    found = place_pods(resources, make_pods(wanted), preferred_level="rack")
    assert (found is None) == (place_pods(resources_of(cluster), make_pods(wanted)) is None)
    assert min(free_units(resources)) >= 0
    if any(fits_brute_force(rack, sorted(wanted, reverse=True)) for rack in cluster):
        assert found is not None
        assert len({name.split("-")[0] for name in found.values()}) == 1


@patient
@given(racks, st.integers(1, 20), st.sampled_from([1, 2, 3, 8]), levels)
def test_count_placeable(cluster: list[list[int]], count: int, size: int, level: str) -> None:
    resources = resources_of(cluster)
    most = count_placeable(resources, make_pods([size] * count), required_level=level)
    assert most == min(count, max(sum(rooms // size for rooms in domain) for domain in domains_at(cluster, level)))
    assert (place_pods(resources, make_pods([size] * count), required_level=level) is not None) == (most == count)


@patient
@given(racks, sizes, levels, levels, st.data())
def test_placement_is_deterministic(
    cluster: list[list[int]], wanted: list[int], required: str, preferred: str, data: st.DataObject
) -> None:
    resources = resources_of(cluster)
    among = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(resources.nodes.names))))
    with resources.trial():
        found = place_pods(
            resources, make_pods(wanted), required_level=required, preferred_level=preferred, among=among
        )
    assert found is None or among is None or set(found.values()) <= set(among)
    mask = None if among is None else resources.nodes.mask_of(reversed(among))
    mixed = data.draw(st.permutations(make_pods(wanted)))
    assert place_pods(resources, mixed, required_level=required, preferred_level=preferred, among=mask) == found


@patient
@given(racks, st.integers(1, 4), st.integers(1, 4))
def test_node_constraints_are_met(cluster: list[list[int]], free_choice: int, tied: int) -> None:
    resources = resources_of(cluster)
    term = (Requirement(key="rack", operator="NotIn", values=("0",)),)
    choosy = Shape.from_requests({GPU: 2000}).requests
    pods = make_pods([4] * free_choice) + [
        Pod(uid=f"t{each}", shape=Shape(choosy, terms=(term,))) for each in range(tied)
    ]
    found = place_pods(resources, pods)
    if found is not None:
        assert all(not name.startswith("0-") for uid, name in found.items() if uid.startswith("t"))
        assert min(free_units(resources)) >= 0
