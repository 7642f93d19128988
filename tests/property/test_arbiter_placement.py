"""Placement over random nodes and gangs: no overcommit, all or none, and no better placement exists."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import combinations

from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway.arbiter.capacity.node_resources import NodeResources
from vkgateway.arbiter.capacity.placement import count_placeable, place_pods
from vkgateway.arbiter.snapshot import Node, Pod, Pool, Requirement, Shape

GPU = "nvidia.com/gpu"
patient = settings(max_examples=80, deadline=None)

free_gpus = st.integers(0, 8)
racks = st.lists(st.lists(free_gpus, min_size=1, max_size=4), min_size=1, max_size=4)
sizes = st.lists(st.sampled_from([1, 2, 4, 8]), min_size=1, max_size=7)
levels = st.sampled_from(["", "rack", "host"])


def room_of(racks: Sequence[Sequence[int]]) -> NodeResources:
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


def gang(sizes: Sequence[int]) -> list[Pod]:
    return [
        Pod(uid=str(index), shape=Shape.from_requests({GPU: size * 1000}), rank=index)
        for index, size in enumerate(sizes)
    ]


def exists(free: list[int], sizes: list[int]) -> bool:
    """Return whether the pods (largest first) fit, by trying all assignments."""
    if not sizes:
        return True
    for index in {room: index for index, room in enumerate(free) if room >= sizes[0]}.values():
        if exists([*free[:index], free[index] - sizes[0], *free[index + 1 :]], sizes[1:]):
            return True
    return False


def domains(racks: Sequence[Sequence[int]], level: str) -> list[list[int]]:
    if level == "rack":
        return [list(free) for free in racks]
    every = [free for rack in racks for free in rack]
    return [every] if level == "" else [[free] for free in every]


def free(room: NodeResources) -> list[int]:
    return [room.free_on_node(name)[GPU] // 1000 for name in room.names]


@patient
@given(racks, sizes, levels)
def test_placement_is_found_exactly_if_one_exists(there: list[list[int]], wanted: list[int], level: str) -> None:
    room = room_of(there)
    before = free(room)
    found = place_pods(room, gang(wanted), required_level=level)
    largest_first = sorted(wanted, reverse=True)
    assert (found is not None) == any(exists(domain, largest_first) for domain in domains(there, level))
    if found is None:
        assert free(room) == before
        return
    assert list(found) == [pod.uid for pod in gang(wanted)]
    used: Counter[str] = Counter()
    for pod, size in zip(found, wanted, strict=True):
        used[found[pod]] += size
    assert free(room) == [room_ - used[name] for room_, name in zip(before, room.names, strict=True)]
    assert min(free(room)) >= 0
    if level:
        labels = {node.name: node.labels[level] for node in room.nodes}
        assert len({labels[name] for name in found.values()}) == 1


@patient
@given(racks, st.integers(1, 12), st.sampled_from([1, 2, 4, 8]))
def test_whole_nodes_stay_whole(there: list[list[int]], count: int, size: int) -> None:
    room = room_of(there)
    if place_pods(room, gang([size] * count)) is None:
        return
    whole = sum(rooms == 8 for rack in there for rooms in rack)
    in_use = sum(rooms // size for rack in there for rooms in rack if rooms < 8)
    needed = -(-max(0, count - in_use) * size // 8)
    assert sum(rooms == 8 for rooms in free(room)) == whole - needed


@patient
@given(racks, st.integers(1, 12), st.sampled_from([1, 2, 3, 8]))
def test_preferred_level_uses_fewest_domains(there: list[list[int]], count: int, size: int) -> None:
    room = room_of(there)
    found = place_pods(room, gang([size] * count), preferred_level="rack")
    assert (found is None) == (place_pods(room_of(there), gang([size] * count)) is None)
    if found is None:
        return
    fits = [sum(rooms // size for rooms in rack) for rack in there]
    fewest = next(
        few for few in range(1, len(there) + 1) if any(sum(chosen) >= count for chosen in combinations(fits, few))
    )
    assert len({name.split("-")[0] for name in found.values()}) == fewest
    order = [room.position_of(found[pod.uid]) for pod in gang([size] * count)]
    assert order == sorted(order)


@patient
@given(racks, sizes)
def test_preferred_level_never_prevents_placement(there: list[list[int]], wanted: list[int]) -> None:
    room = room_of(there)
    found = place_pods(room, gang(wanted), preferred_level="rack")
    assert (found is None) == (place_pods(room_of(there), gang(wanted)) is None)
    assert min(free(room)) >= 0
    if any(exists(rack, sorted(wanted, reverse=True)) for rack in there):
        assert found is not None
        assert len({name.split("-")[0] for name in found.values()}) == 1


@patient
@given(racks, st.integers(1, 20), st.sampled_from([1, 2, 3, 8]), levels)
def test_count_placeable(there: list[list[int]], count: int, size: int, level: str) -> None:
    room = room_of(there)
    most = count_placeable(room, gang([size] * count), required_level=level)
    assert most == min(count, max(sum(rooms // size for rooms in domain) for domain in domains(there, level)))
    assert (place_pods(room, gang([size] * count), required_level=level) is not None) == (most == count)


@patient
@given(racks, sizes, levels, levels, st.data())
def test_placement_is_deterministic(
    there: list[list[int]], wanted: list[int], required: str, preferred: str, data: st.DataObject
) -> None:
    room = room_of(there)
    among = data.draw(st.one_of(st.none(), st.lists(st.sampled_from(room.names))))
    mark = room.mark()
    found = place_pods(room, gang(wanted), required_level=required, preferred_level=preferred, among=among)
    assert found is None or among is None or set(found.values()) <= set(among)
    room.undo(mark)
    mask = None if among is None else room.node_mask(reversed(among))
    mixed = data.draw(st.permutations(gang(wanted)))
    assert place_pods(room, mixed, required_level=required, preferred_level=preferred, among=mask) == found


@patient
@given(racks, st.integers(1, 4), st.integers(1, 4))
def test_node_constraints_are_met(there: list[list[int]], free_choice: int, tied: int) -> None:
    room = room_of(there)
    term = (Requirement(key="rack", operator="NotIn", values=("0",)),)
    choosy = Shape.from_requests({GPU: 2000}).requests
    pods = gang([4] * free_choice) + [Pod(uid=f"t{each}", shape=Shape(choosy, terms=(term,))) for each in range(tied)]
    found = place_pods(room, pods)
    if found is not None:
        assert all(not name.startswith("0-") for uid, name in found.items() if uid.startswith("t"))
        assert min(free(room)) >= 0
