"""Node affinity, taints and tolerations, for one node and for all nodes together."""

import numpy as np
import pytest

from vkgateway.api.objects import Taint
from vkgateway.scheduler.core.capacity.node_fit import ABSENT, NodeFilter
from vkgateway.scheduler.core.capacity.node_matching import (
    count_disliked_taints,
    has_untolerated_taint,
    is_tolerated,
    matches_terms,
    meets_requirement,
)
from vkgateway.scheduler.core.snapshot import Node, Requirement, Shape, Toleration


def make_requirement(key: str, operator: str, *values: str) -> Requirement:
    return Requirement(key=key, operator=operator, values=values)


@pytest.mark.parametrize(
    ("operator", "values", "value", "expected"),
    [
        ("In", ("a", "b"), "b", True),
        ("In", ("a", "b"), "c", False),
        ("In", ("a",), None, False),
        ("In", (), "a", False),
        ("NotIn", ("a",), "b", True),
        ("NotIn", ("a",), "a", False),
        ("NotIn", ("a",), None, True),
        ("NotIn", (), "a", False),
        ("Exists", (), "", True),
        ("Exists", (), None, False),
        ("DoesNotExist", (), None, True),
        ("DoesNotExist", (), "", False),
        ("Gt", ("5",), "6", True),
        ("Gt", ("5",), "5", False),
        ("Gt", ("-5",), "+4", True),
        ("Gt", ("5",), "1_0", False),
        ("Gt", ("5",), " 6", False),
        ("Gt", ("5",), "9223372036854775808", False),
        ("Gt", ("5", "4"), "6", False),
        ("Gt", ("many",), "6", False),
        ("Gt", ("5",), None, False),
        ("Lt", ("5",), "4", True),
        ("Lt", ("5",), "5", False),
        ("Lt", ("5",), "10", False),
        ("Near", ("a",), "a", False),
    ],
)
def test_requirement(operator: str, values: tuple[str, ...], value: str | None, expected: bool) -> None:
    assert meets_requirement(make_requirement("key", operator, *values), value) is expected


def test_terms_are_alternatives_of_conjunctions() -> None:
    terms = ((make_requirement("a", "In", "1"), make_requirement("b", "Exists")), (make_requirement("c", "In", "3"),))
    assert matches_terms(terms, {"a": "1", "b": ""})
    assert matches_terms(terms, {"c": "3"})
    assert not matches_terms(terms, {"a": "1"})


def test_empty_term_matches_no_node() -> None:
    assert matches_terms((), {})
    assert not matches_terms(((),), {"a": "1"})
    assert matches_terms(((), (make_requirement("a", "Exists"),)), {"a": "1"})


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        (Toleration(key="k", value="v"), True),
        (Toleration(key="k", value="v", effect="NoSchedule"), True),
        (Toleration(key="k", value="v", effect="NoExecute"), False),
        (Toleration(key="k", value="w"), False),
        (Toleration(key="j", value="v"), False),
        (Toleration(key="k", operator="Exists"), True),
        (Toleration(operator="Exists"), True),
        (Toleration(operator="Exists", effect="NoExecute"), False),
        (Toleration(key="k", operator="", value="v"), True),
        (Toleration(key="k", operator="Like", value="v"), False),
        (Toleration(key="k", operator="Gt", value="1"), False),
    ],
)
def test_toleration(toleration: Toleration, expected: bool) -> None:
    assert is_tolerated((toleration,), Taint(key="k", value="v", effect="NoSchedule")) is expected


def test_toleration_compares_numbers() -> None:
    taint = Taint(key="sla", value="950", effect="NoExecute")
    assert is_tolerated((Toleration(key="sla", operator="Gt", value="900"),), taint)
    assert not is_tolerated((Toleration(key="sla", operator="Lt", value="900"),), taint)


def test_prefer_no_schedule_taints_only_rank() -> None:
    rather_not = Taint(key="old", effect="PreferNoSchedule")
    assert not has_untolerated_taint((), (rather_not,))
    assert count_disliked_taints((), (rather_not, rather_not)) == 2
    assert count_disliked_taints((Toleration(key="old", operator="Exists"),), (rather_not,)) == 0
    for effect in ("NoSchedule", "NoExecute"):
        assert has_untolerated_taint((), (rather_not, Taint(key="gpu", effect=effect)))
        assert not has_untolerated_taint(
            (Toleration(key="gpu", operator="Exists"),), (Taint(key="gpu", effect=effect),)
        )


NODES = (
    Node(name="a", allocatable={}, labels={"zone": "north", "gen": "3"}),
    Node(name="b", allocatable={}, labels={"zone": "south"}, taints=(Taint(key="x", effect="NoSchedule"),)),
    Node(name="c", allocatable={}, taints=(Taint(key="x", effect="PreferNoSchedule"),), images=frozenset({"i", "j"})),
    Node(name="d", allocatable={}, labels={"zone": "north", "gen": "12"}, usable=False, images=frozenset({"i"})),
)


@pytest.mark.parametrize(
    "terms",
    [
        (),
        ((),),
        ((make_requirement("zone", "In", "north"),),),
        ((make_requirement("zone", "NotIn", "north"), make_requirement("gen", "DoesNotExist")),),
        ((make_requirement("gen", "Gt", "2"),), (make_requirement("zone", "In", "south"),)),
        ((make_requirement("no-such", "Exists"),),),
        ((make_requirement("no-such", "DoesNotExist"),),),
        ((make_requirement("zone", "In", "north", "west", "south"),),),
        ((make_requirement("zone", "In"),),),
        ((make_requirement("zone", "NotIn"),),),
        ((make_requirement("zone", "NotIn", "west"),),),
        ((make_requirement("zone", "NotIn", "north", "south"),),),
    ],
)
@pytest.mark.parametrize("tolerations", [(), (Toleration(key="x", operator="Exists"),)])
def test_node_filter_agrees_with_rules_of_single_nodes(
    terms: tuple[tuple[Requirement, ...], ...], tolerations: tuple[Toleration, ...]
) -> None:
    shape = Shape((), terms=terms, tolerations=tolerations)
    fitting = NodeFilter(NODES)
    assert fitting.feasible_nodes(shape).tolist() == [
        node.usable and matches_terms(terms, node.labels) and not has_untolerated_taint(tolerations, node.taints)
        for node in NODES
    ]
    assert fitting.feasible_nodes(shape) is fitting.feasible_nodes(shape)
    assert fitting.taint_penalty(shape).tolist() == [count_disliked_taints(tolerations, node.taints) for node in NODES]


def test_cache_distinguishes_similar_shapes() -> None:
    fitting = NodeFilter(NODES)
    plain = Shape(())
    tolerant = Shape((), tolerations=(Toleration(key="x", operator="Exists"),))
    choosy = Shape((), terms=((make_requirement("zone", "In", "north"),),))
    assert fitting.feasible_nodes(plain).tolist() == [True, False, True, False]
    assert fitting.feasible_nodes(tolerant).tolist() == [True, True, True, False]
    assert fitting.feasible_nodes(choosy).tolist() == [True, False, False, False]
    assert (fitting.taint_penalty(plain).sum(), fitting.taint_penalty(tolerant).sum()) == (1, 0)


def test_missing_images_are_counted() -> None:
    fitting = NodeFilter(NODES)
    assert fitting.missing_images(Shape((), images=frozenset({"i", "j"}))).tolist() == [2, 2, 0, 1]
    assert fitting.missing_images(Shape((), images=frozenset({"i", "new"}))).tolist() == [2, 2, 1, 1]
    assert fitting.known_images(Shape((), images=frozenset({"i", "new"}))) == {"i"}
    assert fitting.known_images(Shape(())) == set()


def test_label_column() -> None:
    column = NodeFilter(NODES).label_column("zone")
    assert column.values == ("north", "south")
    assert np.array_equal(column.codes, [0, 1, ABSENT, 0])


def test_filter_without_nodes() -> None:
    fitting = NodeFilter(())
    shape = Shape((), terms=((make_requirement("a", "Exists"),),), images=frozenset({"i"}))
    assert (
        fitting.feasible_nodes(shape).size
        == fitting.taint_penalty(shape).size
        == fitting.missing_images(shape).size
        == 0
    )
