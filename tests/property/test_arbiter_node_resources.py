"""Node resources after random changes and undos agree with plain counting."""

from __future__ import annotations

from collections import Counter

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.arbiter.simulated_cluster import node_fits
from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.shape_views import PLENTY
from vkgateway.scheduler.core.snapshot import Node, Pool, Shape, Toleration

GPU = "nvidia.com/gpu"
patient = settings(max_examples=50, deadline=None)

amounts = st.fixed_dictionaries(
    {GPU: st.sampled_from([0, 1000, 2000, 8000, 8000])},
    optional={"cpu": st.integers(0, 64_000), "memory": st.sampled_from([2**20, 2**50, 2**60, 2**90])},
)
nodes = st.builds(
    Node,
    name=st.text("abc", min_size=1, max_size=3),
    allocatable=amounts,
    used=st.one_of(st.just({}), amounts),
    labels=st.dictionaries(st.just("rack"), st.sampled_from("xy")),
    taints=st.lists(
        st.builds(Taint, key=st.sampled_from("kl"), effect=st.sampled_from(["NoSchedule", "PreferNoSchedule"])),
        max_size=2,
    ).map(tuple),
    images=st.frozensets(st.sampled_from("ij")),
    usable=st.sampled_from([True, True, False]),
)
pools = st.lists(nodes, min_size=1, max_size=12, unique_by=lambda node: node.name).map(
    lambda found: Pool(key=("compute", "pool"), nodes=tuple(found), governed=(GPU,), levels=("rack",))
)
shapes = st.builds(
    lambda asked, tolerations, images: Shape(
        Shape.from_requests(asked).requests, tolerations=tolerations, images=images
    ),
    amounts,
    st.sampled_from([(), (Toleration(key="k", operator="Exists"),)]),
    st.frozensets(st.sampled_from("ij")),
)


class CountedResources:
    """Reference count of the shapes on each node."""

    def __init__(self, resources: NodeResources) -> None:
        self.room = resources
        self.pods: list[Counter[Shape]] = [Counter() for _ in resources.nodes.ordered]

    def change_pods(self, position: int, shape: Shape, count: int) -> None:
        self.pods[position][shape] += count

    def capacity_of(self, shape: Shape) -> list[int]:
        return [self._fits(position, shape) for position in range(len(self.pods))]

    def _fits(self, position: int, shape: Shape) -> int:
        node = self.room.nodes.ordered[position]
        if not node_fits(shape, node) or not all(
            any(name in each.allocatable for each in self.room.nodes.ordered) for name, _ in shape.requests
        ):
            return 0
        return max(
            0, min([PLENTY, *(self._free(position, name) // limit_amount(asked) for name, asked in shape.requests)])
        )

    def _free(self, position: int, name: str) -> int:
        node = self.room.nodes.ordered[position]
        taken = sum(limit_amount(shape.amount_of(name)) * count for shape, count in self.pods[position].items())
        return limit_amount(node.allocatable.get(name, 0)) - limit_amount(node.used.get(name, 0)) - taken


def limit_amount(amount: int) -> int:
    return min(amount, 1 << 56)


@patient
@given(pools, st.lists(shapes, min_size=1, max_size=3), st.data())
def test_capacity_agrees_with_counting(pool: Pool, wanted: list[Shape], data: st.DataObject) -> None:
    resources = NodeResources(pool)
    ledger = CountedResources(resources)
    marks: list[tuple[int, list[Counter[Shape]]]] = []
    for _ in range(data.draw(st.integers(0, 12))):
        step = data.draw(st.sampled_from(["take", "give", "mark", "undo", "look", "take many"]))
        shape = data.draw(st.sampled_from(wanted))
        position = data.draw(st.integers(0, len(resources.nodes) - 1))
        if step == "take":
            resources.add_pods(resources.nodes.names[position], shape, 2)
            ledger.change_pods(position, shape, 2)
        elif step == "give":
            resources.remove_pods(resources.nodes.names[position], shape)
            ledger.change_pods(position, shape, -1)
        elif step == "take many":
            for _ in range(data.draw(st.sampled_from([1, 7]))):
                resources.add_pods_at(range(len(resources.nodes)), shape, [1] * len(resources.nodes))
                for each in range(len(resources.nodes)):
                    ledger.change_pods(each, shape, 1)
        elif step == "mark":
            marks.append((resources.journal.mark(), [Counter(each) for each in ledger.pods]))
        elif step == "undo" and marks:
            mark, before = marks.pop(data.draw(st.integers(0, len(marks) - 1)))
            resources.journal.undo(mark)
            marks = [(other, pods) for other, pods in marks if other <= mark]
            ledger.pods = [Counter(each) for each in before]
        if step == "look":
            assert resources.views[shape].capacity.tolist() == ledger.capacity_of(shape)
    for shape in wanted:
        assert resources.views[shape].capacity.tolist() == ledger.capacity_of(shape)
        assert resources.views[shape].total == sum(ledger.capacity_of(shape))


@patient
@given(pools, st.lists(shapes, min_size=1, max_size=3), st.data())
def test_refreshed_views_equal_new_views(pool: Pool, wanted: list[Shape], data: st.DataObject) -> None:
    resources = NodeResources(pool)
    for _ in range(data.draw(st.integers(1, 6))):
        shape = data.draw(st.sampled_from(wanted))
        resources.add_pods(data.draw(st.sampled_from(resources.nodes.names)), shape, data.draw(st.integers(-1, 2)))
        for _ in range(data.draw(st.sampled_from([0, 20]))):
            resources.add_pods(resources.nodes.names[0], shape)
            resources.remove_pods(resources.nodes.names[0], shape)
        for looked_at in wanted:
            resources.views[looked_at].domain_sums("rack")
    for shape in wanted:
        kept, new = resources.views[shape], resources.copy().views[shape]
        assert kept.key.tolist() == new.key.tolist()
        assert kept.capacity.tolist() == new.capacity.tolist()
        for part in ("capacity", "loose", "units"):
            assert getattr(kept.domain_sums("rack"), part).tolist() == getattr(new.domain_sums("rack"), part).tolist()
        assert kept.domain_sums("rack").capacity.sum() == kept.total
        assert len(set(kept.key[kept.capacity > 0].tolist())) == kept.count_fitting_nodes(None)
