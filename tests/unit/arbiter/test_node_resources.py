"""Free capacity, trials and undo."""

from dataclasses import replace

import pytest

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.node_table import NodeTable
from vkgateway.scheduler.core.snapshot import Node, Pool, Shape

GPU = "nvidia.com/gpu"


def make_node(name: str, gpus: int = 8, *, used: int = 0, usable: bool = True, **labels: str) -> Node:
    return Node(
        name=name,
        allocatable={"cpu": 64_000, GPU: gpus * 1000},
        used={GPU: used * 1000},
        labels=labels,
        usable=usable,
    )


def make_pool(*nodes: Node, levels: tuple[str, ...] = ()) -> Pool:
    return Pool(key=("compute", "pool"), nodes=nodes, governed=(GPU,), levels=levels)


def gpu_shape(count: int, cpu: int = 0) -> Shape:
    return Shape.from_requests({GPU: count * 1000, "cpu": cpu * 1000})


def test_nodes_are_in_topology_order() -> None:
    nodes = (
        make_node("d"),
        make_node("c", rack="2"),
        make_node("b", rack="1", zone="z"),
        make_node("a", rack="2", zone="z"),
    )
    assert NodeTable(make_pool(*nodes, levels=("zone", "rack"))).names == ("b", "a", "c", "d")
    assert NodeTable(make_pool(*nodes)).names == ("a", "b", "c", "d")


def test_scarcest_resource_limits_capacity() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b", used=3)))
    assert resources.views[gpu_shape(2)].capacity.tolist() == [4, 2]
    assert resources.views[gpu_shape(2, cpu=40)].capacity.tolist() == [1, 1]
    assert resources.views[gpu_shape(2)].total == 6


def test_unknown_resource_or_unusable_node_has_no_capacity() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b", usable=False)))
    assert resources.views[gpu_shape(1)].capacity.tolist() == [8, 0]
    assert resources.views[Shape.from_requests({GPU: 1000, "example.com/fpga": 1})].capacity.tolist() == [0, 0]
    resources.add_pods("a", Shape.from_requests({"example.com/fpga": 1}))
    assert resources.free.amounts_on("a") == {"cpu": 64_000, GPU: 8000}


def test_largest_usable_node_defines_whole_node() -> None:
    unusable = make_node("c", 16, usable=False)
    assert NodeTable(make_pool(make_node("a", 8), make_node("b", 4), unusable)).largest_units == 8000
    assert NodeTable(make_pool(unusable)).largest_units == 0


def test_mask_of_allowed_nodes() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b"), make_node("c")))
    assert resources.nodes.mask_of(["c", "gone"]).tolist() == [False, False, True]
    mask = resources.nodes.mask_of(["a", "b"])
    assert mask.tolist() == [True, True, False]
    assert resources.nodes.mask_of(mask).tolist() == [True, True, False]
    assert resources.nodes.mask_of([]).tolist() == [False, False, False]
    assert resources.nodes.mask_of(None).tolist() == [True, True, True]


def test_running_pods_count_beyond_capacity() -> None:
    resources = NodeResources(make_pool(make_node("a", 2)))
    resources.add_pods("a", gpu_shape(1), 3)
    assert resources.free.amounts_on("a")[GPU] == -1000
    assert resources.views[gpu_shape(1)].capacity.tolist() == [0]
    resources.remove_pods("a", gpu_shape(1), 2)
    assert resources.views[gpu_shape(1)].capacity.tolist() == [1]


def test_huge_amounts_do_not_overflow() -> None:
    vast = Shape.from_requests({"memory": 2**80})
    resources = NodeResources(make_pool(Node(name="a", allocatable={GPU: 8000, "memory": 2**60, "cpu": 1})))
    assert resources.views[vast].capacity.tolist() == [1]
    resources.add_pods("a", vast, 10)
    assert resources.views[vast].capacity.tolist() == [0]


def test_unknown_node_raises() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    assert "b" not in resources.nodes
    with pytest.raises(KeyError):
        resources.add_pods("b", gpu_shape(1))
    with pytest.raises(KeyError):
        resources.remove_pods("b", gpu_shape(1))


def test_many_pods_are_added_and_removed() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b")))
    mark = resources.journal.mark()
    resources.add_many([("a", gpu_shape(1)), ("b", gpu_shape(2)), ("a", gpu_shape(1)), ("a", gpu_shape(4))])
    assert (resources.free.amounts_on("a")[GPU], resources.free.amounts_on("b")[GPU]) == (2000, 6000)
    resources.journal.undo(mark)
    with pytest.raises(KeyError):
        resources.add_many([("a", gpu_shape(1)), ("c", gpu_shape(2))])
    assert resources.free.amounts_on("a")[GPU] == 8000


def test_undo_restores_state_and_mark_stays_valid() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b")))
    resources.add_pods("a", gpu_shape(4))
    mark = resources.journal.mark()
    for _ in range(2):
        resources.add_pods("b", gpu_shape(8))
        resources.remove_pods("a", gpu_shape(4))
        assert resources.views[gpu_shape(8)].capacity.tolist() == [1, 0]
        resources.journal.undo(mark)
        assert resources.views[gpu_shape(8)].capacity.tolist() == [0, 1]
        assert resources.free.amounts_on("a")[GPU] == 4000


def test_nested_trials() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    outer = resources.journal.mark()
    resources.add_pods("a", gpu_shape(1))
    inner = resources.journal.mark()
    resources.add_pods("a", gpu_shape(2))
    resources.journal.undo(inner)
    assert resources.free.amounts_on("a")[GPU] == 7000
    resources.journal.undo(outer)
    assert resources.free.amounts_on("a")[GPU] == 8000


def test_forgotten_marks_keep_changes() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    resources.add_pods("a", gpu_shape(1))
    resources.journal.forget()
    mark = resources.journal.mark()
    resources.add_pods("a", gpu_shape(1))
    resources.journal.undo(mark)
    assert resources.free.amounts_on("a")[GPU] == 7000


def test_version_grows_only_when_capacity_is_freed() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    before = resources.unfit.version
    resources.add_pods("a", gpu_shape(1))
    assert resources.unfit.version == before
    resources.remove_pods("a", gpu_shape(1))
    assert resources.unfit.version > before


def test_unfit_shapes_are_remembered_until_capacity_is_freed() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    resources.unfit.add("gang")
    assert "gang" in resources.unfit
    resources.add_pods("a", gpu_shape(1))
    assert "gang" in resources.unfit
    resources.remove_pods("a", gpu_shape(1))
    assert "gang" not in resources.unfit


def test_undo_forgets_unfit_shapes_of_trial() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    mark = resources.journal.mark()
    resources.add_pods("a", gpu_shape(8))
    resources.unfit.add("gang")
    resources.journal.undo(mark)
    assert "gang" not in resources.unfit


def test_versions_are_never_reused() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    resources.add_pods("a", gpu_shape(8))
    resources.unfit.add("before")
    before = resources.unfit.version
    with resources.trial():
        resources.remove_pods("a", gpu_shape(1))
        in_trial = resources.unfit.version
    assert "before" in resources.unfit
    resources.remove_pods("a", gpu_shape(2))
    assert resources.unfit.version not in (in_trial, before)


def test_copy_is_independent() -> None:
    resources = NodeResources(make_pool(make_node("a")))
    resources.add_pods("a", gpu_shape(2))
    assert resources.views[gpu_shape(1)].total == 6
    other = resources.copy()
    other.add_pods("a", gpu_shape(6))
    assert (resources.views[gpu_shape(1)].total, other.views[gpu_shape(1)].total) == (6, 0)
    resources.add_pods("a", gpu_shape(1))
    assert (resources.views[gpu_shape(1)].total, other.views[gpu_shape(1)].total) == (5, 0)


def test_nodes_in_domain() -> None:
    resources = NodeResources(
        make_pool(
            make_node("a", rack="1"), make_node("b", rack="2"), make_node("c", rack="1"), make_node("d"), make_node("e")
        )
    )
    assert resources.nodes.domain_mask("a", "rack").tolist() == [True, False, True, False, False]
    assert resources.nodes.domain_mask("d", "rack").tolist() == [False, False, False, True, False]


def test_a_pool_without_nodes() -> None:
    resources = NodeResources(make_pool())
    assert resources.views[gpu_shape(1)].total == 0
    assert resources.views[gpu_shape(1)].capacity.size == 0


def test_partial_and_full_refresh_agree() -> None:
    nodes = [make_node(f"{index:03}", size, rack=str(index % 7)) for index, size in enumerate([8, 4, 8, 2] * 30)]
    nodes += [make_node(f"x{index}", usable=False) for index in range(5)]
    resources = NodeResources(make_pool(*nodes, levels=("rack",)))
    for touched in (1, 8, 9, 25, 31, 32, 125):
        shape = gpu_shape(touched % 3, cpu=5)
        resources.views[shape].domain_sums("rack")
        resources.add_pods_at(range(touched), shape, [1 + position % 2 for position in range(touched)])
        for looked_at in (shape, gpu_shape(1, cpu=2), gpu_shape(4)):
            kept, new = resources.views[looked_at], resources.copy().views[looked_at]
            assert kept.total == new.total
            assert kept.key.tolist() == new.key.tolist()
            for part in ("capacity", "loose", "units"):
                assert (
                    getattr(kept.domain_sums("rack"), part).tolist() == getattr(new.domain_sums("rack"), part).tolist()
                )


@pytest.mark.parametrize("number", [1, 3, 40, 500])
def test_undo_after_any_number_of_changes(number: int) -> None:
    resources, shape = NodeResources(make_pool(*(make_node(f"{index:02}") for index in range(40)))), gpu_shape(1, cpu=1)
    resources.add_pods("07", shape)
    resources.unfit.add("before")
    before, total, version = resources.free.amounts_on("07"), resources.views[shape].total, resources.unfit.version
    mark = resources.journal.mark()
    for index in range(number):
        resources.add_pods(f"{index % 40:02}", shape)
        assert resources.views[shape].total >= 0
        if index % 3 == 0:
            resources.remove_pods("07", shape)
    resources.unfit.add("within")
    resources.journal.undo(mark)

    assert (resources.free.amounts_on("07"), resources.views[shape].total, resources.unfit.version) == (
        before,
        total,
        version,
    )
    assert ("before" in resources.unfit, "within" in resources.unfit) == (True, False)
    new = resources.copy().views[shape]
    assert resources.views[shape].key.tolist() == new.key.tolist()
    resources.add_pods("07", shape)
    assert resources.views[shape].total == total - 1


def test_unknown_images_do_not_matter() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b")))
    new, newer = (replace(gpu_shape(1), images=frozenset({name})) for name in ("new", "newer"))
    assert resources.views[new] is resources.views[newer] is resources.views[gpu_shape(1)]
    assert resources.views[gpu_shape(1)] is not resources.views[gpu_shape(2)]


def test_views_of_many_shapes_stay_correct() -> None:
    resources = NodeResources(make_pool(make_node("a"), make_node("b")))
    for count in range(1, 400):
        shape = Shape.from_requests({GPU: 1000, "cpu": count})
        resources.add_pods("a", gpu_shape(1))
        assert resources.views[shape].total == 15
        resources.remove_pods("a", gpu_shape(1))
        assert resources.views[shape].total == 16
