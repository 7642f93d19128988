"""Small pool with borrowing gangs, for tests of the victim search: nodes of 8 GPUs, and gangs defined in one line."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.preemption.candidates import PreemptionCandidates
from vkgateway.scheduler.core.preemption.victim_search import VictimChoice, choose_victims
from vkgateway.scheduler.core.snapshot import Band, Gang, Node, Pod, PodState, Pool, Shape

GPU = "nvidia.com/gpu"
KEY = ("compute", "pool")
NOW = 100_000.0


def make_node(name: str, *, size: int = 8, cpu: int = 64, usable: bool = True, **labels: str) -> Node:
    allocatable = {"cpu": cpu * 1000, GPU: size * 1000}
    return Node(name=name, allocatable=allocatable, labels=labels, usable=usable)


def make_nodes(count: int, *, racks: int = 1) -> list[Node]:
    return [make_node(f"n{index}", rack=f"r{index * racks // count}") for index in range(count)]


def gpu_shape(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def placed_pod(
    uid: str, on: str, size: int | Shape = 1, *, age: float = 100, borrowed: bool = True, rank: int = 0
) -> Pod:
    shape = size if isinstance(size, Shape) else gpu_shape(size)
    return Pod(
        uid=uid, shape=shape, rank=rank, state=PodState.PLACED, pool=KEY, node=on, borrowed=borrowed, since=NOW - age
    )


def running_gang(
    name: str,
    places: Sequence[str],
    size: int | Shape = 1,
    *,
    tenant: str = "low",
    age: float = 100,
    minimum: int | None = None,
    elastic: bool = False,
    borrowed: bool = True,
    priority: int = 0,
    minimum_run: float = 0,
    checkpoint: float = 0,
    restart_cost: float = 0,
    notice: float = 10,
) -> Gang:
    """Return a gang of equal pods, one on each of these nodes, lowest rank first: `name-0`, ..."""
    pods = tuple(
        placed_pod(f"{name}-{rank}", on, size, age=age, borrowed=borrowed, rank=rank) for rank, on in enumerate(places)
    )
    return Gang(
        id=name,
        tenant=tenant,
        pods=pods,
        pools=(KEY,),
        band=Band.LOW,
        priority=priority,
        minimum=len(pods) if minimum is None else minimum,
        elastic=elastic,
        minimum_run=minimum_run,
        checkpoint=checkpoint,
        restart_cost=restart_cost,
        notice=notice,
    )


def waiting_gang(
    count: int, size: int | Shape = 8, *, required_level: str = "", preferred_level: str = "", name: str = "new"
) -> Gang:
    """Return a waiting gang of this number of equal pods."""
    shape = size if isinstance(size, Shape) else gpu_shape(size)
    return mixed_gang([shape] * count, required_level=required_level, preferred_level=preferred_level, name=name)


def mixed_gang(
    shapes: Iterable[Shape], *, required_level: str = "", preferred_level: str = "", name: str = "new"
) -> Gang:
    pods = tuple(Pod(uid=f"{name}-{rank}", shape=shape, rank=rank) for rank, shape in enumerate(shapes))
    return Gang(
        id=name,
        tenant="high",
        pods=pods,
        pools=(KEY,),
        minimum=len(pods),
        required_level=required_level,
        preferred_level=preferred_level,
    )


def resources_and_candidates(
    cluster: Iterable[Node], gangs: Iterable[Gang] = ()
) -> tuple[NodeResources, PreemptionCandidates]:
    """Return the resources of nodes on which these gangs run, and the gangs as candidates."""
    resources = NodeResources(Pool(key=KEY, nodes=tuple(cluster), governed=(GPU,), levels=("rack",)))
    candidates = PreemptionCandidates(KEY, GPU)
    for gang in gangs:
        candidates.update_gang(gang)
        for pod in gang.pods:
            if pod.state is not PodState.WAITING and pod.node in resources.nodes:
                resources.add_pods(pod.node, pod.shape)
    return resources, candidates


def with_changed_pod(gang: Gang, index: int, **fields: object) -> Gang:
    """Return the gang with one pod changed."""
    pods = list(gang.pods)
    pods[index] = replace(pods[index], **fields)  # type: ignore[arg-type]
    return replace(gang, pods=tuple(pods))


def choose_for(
    cluster: tuple[NodeResources, PreemptionCandidates], gang: Gang, **options: object
) -> VictimChoice | None:
    return choose_victims(*cluster, gang, gang.pods, now=NOW, **options)  # type: ignore[arg-type]


def evicted_pods(choice: VictimChoice | None) -> dict[str, tuple[str, ...]]:
    assert choice is not None
    return {evict.gang: evict.pods for evict in choice.evicts}
