"""Volcano's objects for gangs, tenants and pools, and what a PodGroup's phase means."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import msgspec
import pytest

from tests.unit.arbiter.simulated_cluster import GPU, KEY, make_gang, make_nodes, make_quota
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.attempt import AttemptState
from vkgateway.scheduler.backends.mode import Request
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.backends.pod_sets import pod_set_name
from vkgateway.scheduler.backends.volcano.mode import VolcanoMode, decode_pod_group, read_attempt, volcano_priority
from vkgateway.scheduler.core.snapshot import Band, Gang, Pool

MODE = VolcanoMode()
SPEC = PoolSpec(name=KEY[1], scheduling=PoolScheduling(mode="volcano"))
POOL = Pool(key=KEY, nodes=tuple(make_nodes(4)), governed=(GPU,))
ID = "a/default/gang/train"


def gang(gpus: list[int], **fields: Any) -> Gang:
    return make_gang(ID, "a", gpus, pools=(KEY,), **fields)


def request(gang: Gang, spec: PoolSpec = SPEC, **fields: Any) -> Request:
    return Request(name=attempt_name(gang.tenant, gang.id), gang=gang, pods=gang.pods, spec=spec, **fields)


def test_pod_group_names_the_gang_and_asks_for_all_its_pods() -> None:
    made = gang([8, 8, 4])
    group = MODE.attempt_object(request(made))
    assert group["metadata"]["namespace"] == "a--default"
    spec = group["spec"]
    assert (spec["queue"], spec["minMember"], spec["minResources"][GPU]) == (f"a.{KEY[1]}", 3, "20")
    assert "minTaskMember" not in spec, "Volcano takes pods of one task for equal"


def test_pods_name_their_group_and_a_class_that_may_preempt() -> None:
    made = gang([8, 4], grace=7.0)
    marks = MODE.marks(request(made), made.pods[1])
    assert (marks.scheduler_name, marks.grace) == ("volcano", 7)
    assert marks.annotations == {"scheduling.k8s.io/group-name": attempt_name("a", ID)}
    late = MODE.marks(request(made, is_surplus=True), made.pods[1])
    found = [each for each in MODE.pool_objects(POOL, SPEC, [], [made]) if each["kind"] == "PriorityClass"]
    assert {each["metadata"]["name"] for each in found} == {marks.priority_class, late.priority_class}
    assert not any("preemptionPolicy" in each for each in found)


def test_another_scheduler_name_is_used() -> None:
    spec = PoolSpec(name="p", scheduling=PoolScheduling(mode="volcano", scheduler_name="volcano-gpu"))
    made = gang([8])
    assert MODE.marks(request(made, spec), made.pods[0]).scheduler_name == "volcano-gpu"


@pytest.mark.parametrize(
    ("higher", "lower"),
    [
        ({"priority": 100}, {"priority": 0}),
        ({"priority": 0}, {"priority": -5}),
        ({"priority": -(10**9)}, {"priority": 10**9, "band": Band.LOW}),
    ],
)
def test_priorities_keep_their_order(higher: dict[str, Any], lower: dict[str, Any]) -> None:
    assert volcano_priority(gang([1], **higher)) > volcano_priority(gang([1], **lower))


@pytest.mark.parametrize("band", Band)
def test_surplus_goes_before_any_whole_gang_of_its_band(band: Band) -> None:
    surplus = volcano_priority(gang([1], band=band, priority=10**9), is_surplus=True)
    assert surplus < volcano_priority(gang([1], band=band, priority=-(10**9)))
    assert band is Band.LOW or surplus > volcano_priority(gang([1], band=Band.LOW, priority=10**9))


def test_number_of_priority_classes_is_bounded() -> None:
    gangs = [gang([1], priority=priority) for priority in range(0, 100_000, 7)]
    assert len({volcano_priority(each) for each in gangs}) < 60
    assert all(0 < volcano_priority(each) <= 1_000_000_000 for each in gangs)


def test_queue_deserves_the_guarantee_and_is_capable_of_the_limit() -> None:
    quota = make_quota("a", 16, limit=24)
    (queue,) = [each for each in MODE.pool_objects(POOL, SPEC, [quota], []) if each["kind"] == "Queue"]
    assert queue["metadata"]["name"] == f"a.{KEY[1]}"
    spec = queue["spec"]
    assert (spec["deserved"][GPU], spec["capability"][GPU], spec["reclaimable"]) == ("16", "24", True)
    assert "guarantee" not in spec, "Volcano never lends it"


def test_queue_without_a_guarantee_or_limit_may_use_the_whole_pool() -> None:
    (queue,) = MODE.pool_objects(POOL, SPEC, [make_quota("b", 0)], [])
    assert queue["spec"]["deserved"] == {}
    assert queue["spec"]["capability"][GPU] == "32"


def test_queue_never_deserves_more_than_its_capability() -> None:
    """Volcano's webhook would refuse the queue."""
    empty = Pool(key=KEY, nodes=(), governed=(GPU,))
    (queue,) = MODE.pool_objects(empty, SPEC, [make_quota("a", 16)], [])
    assert queue["spec"]["deserved"].keys() <= queue["spec"]["capability"].keys()


def test_queues_of_the_administrator_are_left_alone() -> None:
    spec = PoolSpec(name=KEY[1], scheduling=PoolScheduling(mode="volcano", queue="theirs", manage_queues=False))
    assert MODE.pool_objects(POOL, spec, [make_quota("a", 16)], []) == []
    assert MODE.attempt_object(request(gang([8]), spec))["spec"]["queue"] == "theirs"


@pytest.mark.parametrize(
    ("phase", "state"),
    [
        ("", AttemptState.PENDING),
        ("Pending", AttemptState.PENDING),
        ("Inqueue", AttemptState.ADMITTED),
        ("Running", AttemptState.ADMITTED),
        ("Unknown", AttemptState.ADMITTED),
    ],
)
def test_phase_of_a_pod_group_is_the_state_of_its_attempt(phase: str, state: AttemptState) -> None:
    made = gang([8, 8])
    document = MODE.attempt_object(request(made)) | {"status": {"phase": phase}}
    document["metadata"] |= {"uid": "u", "creationTimestamp": "2026-01-01T00:00:00Z"}
    attempt = read_attempt(decode_pod_group(msgspec.json.encode(document)), KEY[0], lambda host: host)
    assert (attempt.state, attempt.tenant, attempt.pool, attempt.namespace) == (state, "a", KEY, "a--default")
    assert attempt.digest == MODE.digest(request(made))
    assert attempt.priority == volcano_priority(made)
    assert attempt.slots == {pod_set_name(made.pods[0]): {"": 2}}
    assert (attempt.wait is not None) is (phase == "Pending")


def test_group_of_a_class_of_others_has_no_priority() -> None:
    for name in ("", "urgent", "vkgateway-volcano-", "vkgateway-volcano-x"):
        document = MODE.attempt_object(request(gang([8])))
        document["metadata"] |= {"uid": "u"}
        document["spec"]["priorityClassName"] = name
        assert read_attempt(decode_pod_group(msgspec.json.encode(document)), KEY[0], lambda host: host).priority == 0


def test_changed_pod_counts_leave_no_slot() -> None:
    document = MODE.attempt_object(request(gang([8]))) | {"status": {"phase": "Running"}}
    document["metadata"] |= {"uid": "u", "annotations": {"vkgateway.io/pods": "[1]"}}
    assert read_attempt(decode_pod_group(msgspec.json.encode(document)), KEY[0], lambda host: host).slots == {}


def test_queue_gets_its_guarantee_only_while_a_budget_is_used_up() -> None:
    quotas = [replace(make_quota("a", 8, limit=24), stopped=(GPU,)), replace(make_quota("b"), stopped=(GPU,))]
    found = [each["spec"] for each in MODE.pool_objects(POOL, SPEC, quotas, []) if each["kind"] == "Queue"]
    assert [each["capability"][GPU] for each in found] == ["8", "0"]
    assert [each["deserved"].get(GPU) for each in found] == ["8", None]
