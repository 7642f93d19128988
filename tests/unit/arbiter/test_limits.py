"""Limits: what is bound past them waits, in order, and runs when there is room."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.arbiter.queueing.node_limits import WAITING_FOR_QUOTA, TenantLimits

NODE = "a100.local"


def gpus(count: int) -> dict[str, int]:
    return {"nvidia.com/gpu": count * 1000}


def test_a_pod_within_the_limit_is_admitted() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))

    assert limits.request_admission("a", NODE, gpus(8)).verdict == "admitted"


def test_a_pod_past_the_limit_is_held_with_the_numbers() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))
    limits.request_admission("a", NODE, gpus(6))

    held = limits.request_admission("b", NODE, gpus(4))

    assert held.verdict == "held"
    assert held.code == WAITING_FOR_QUOTA
    assert held.message == ("needs nvidia.com/gpu 4 on a100.local; in use: nvidia.com/gpu 6; limit: nvidia.com/gpu 8")


def test_a_resource_that_the_node_does_not_have_cannot_be_had() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))

    assert limits.request_admission("a", NODE, {"amd.com/gpu": 1000}).verdict == "held"


def test_asking_twice_counts_once() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))
    limits.request_admission("a", NODE, gpus(8))

    assert limits.request_admission("a", NODE, gpus(8)).verdict == "admitted"
    limits.release_pod("a")
    assert limits.request_admission("b", NODE, gpus(8)).verdict == "admitted"


def test_what_ends_wakes_those_who_wait_in_the_order_of_asking() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))
    limits.request_admission("a", NODE, gpus(8))
    limits.request_admission("b", NODE, gpus(4))
    limits.request_admission("c", NODE, gpus(4))

    assert limits.release_pod("a") == ["b", "c"]


def test_what_runs_already_counts_whatever_the_limit_says_now() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(4))
    limits.add_running("a", NODE, gpus(8))

    assert limits.request_admission("b", NODE, gpus(1)).verdict == "held"


def test_a_running_pod_takes_more_where_there_is_room_and_keeps_what_it_has_where_there_is_not() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(8))
    limits.add_running("a", NODE, gpus(4))

    assert limits.resize_pod("a", gpus(8)).verdict == "admitted"
    refused = limits.resize_pod("a", gpus(9))
    assert (refused.verdict, limits.counted_requests("a")) == ("held", gpus(8))
    assert "needs more nvidia.com/gpu 1 on" in refused.message
    assert limits.request_admission("b", NODE, gpus(1)).verdict == "held"

    assert limits.resize_pod("a", gpus(2)).verdict == "admitted"
    assert limits.request_admission("b", NODE, gpus(6)).verdict == "admitted"


def test_a_pod_beyond_a_limit_that_shrank_may_take_less() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(2))
    limits.add_running("a", NODE, gpus(8))
    assert limits.resize_pod("a", gpus(4)).verdict == "admitted"
    assert limits.counted_requests("a") == gpus(4)
    assert limits.counted_requests("b") is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=60))
def test_the_limit_holds_after_any_course_of_events(steps: list[tuple[int, int, bool]]) -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpus(10))
    running: dict[str, int] = {}
    for pod, size, leaves in steps:
        uid = str(pod)
        if leaves:
            limits.release_pod(uid)
            running.pop(uid, None)
        elif limits.request_admission(uid, NODE, gpus(size)).verdict == "admitted":
            running.setdefault(uid, size)
        assert sum(running.values()) <= 10


def test_a_pod_put_there_by_hand_is_rejected_in_a_kubelets_words() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"pods": 2000, "cpu": 4000, "memory": 8_000_000_000, "nvidia.com/gpu": 2000})
    limits.request_admission("one", NODE, {"pods": 1000, "cpu": 3500, "memory": 1000})
    said = limits.request_admission("two", NODE, {"pods": 1000, "memory": 9_000_000_000, "cpu": 501}, by_hand=True)
    assert (said.verdict, said.code) == ("rejected", "OutOfcpu")
    assert said.message == "Node didn't have enough resource: cpu, requested: 501, used: 3500, capacity: 4000"
    said = limits.request_admission("two", NODE, {"pods": 1000, "memory": 9_000_000_000}, by_hand=True)
    assert said.message == "Node didn't have enough resource: memory, requested: 9000000, used: 1, capacity: 8000000"
    assert limits.held_pods(NODE) == []
    assert limits.request_admission("two", NODE, {"pods": 1000, "cpu": 500}, by_hand=True).verdict == "admitted"
    assert limits.request_admission("three", NODE, {"pods": 1000}, by_hand=True).code == "OutOfpods"
    assert limits.request_admission("four", NODE, {"pods": 1000}).verdict == "held"


def test_nobody_is_rejected_by_a_node_of_which_nothing_is_known() -> None:
    limits = TenantLimits()
    assert limits.request_admission("one", NODE, {"cpu": 1}, by_hand=True).verdict == "held"
    assert limits.hold_manual_pod("two", NODE, {"cpu": 1}) is None


def test_what_is_not_asked_for_rejects_nobody() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"pods": 10_000, "cpu": 1000})
    limits.add_running("one", NODE, {"pods": 1000, "cpu": 3000})
    assert limits.hold_manual_pod("two", NODE, {"pods": 1000, "cpu": 0, "nvidia.com/gpu": 0}) is None


def test_a_pod_put_there_by_hand_that_turns_out_not_to_wait_for_the_arbiter_is_not_counted_twice() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"cpu": 1500})
    assert limits.hold_manual_pod("one", NODE, {"cpu": 1000}) is None
    assert limits.request_admission("one", NODE, {"cpu": 1000}, by_hand=True).verdict == "admitted"
    assert limits.request_admission("two", NODE, {"cpu": 500}, by_hand=True).verdict == "admitted"


def test_pods_put_there_by_hand_that_wait_for_the_arbiter_count_for_their_like() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"nvidia.com/gpu": 8000, "cpu": 9000})
    gpus = {"nvidia.com/gpu": 8000, "cpu": 9000}
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    said = limits.hold_manual_pod("two", NODE, gpus)
    assert said is not None
    assert (said.code, said.message.partition(", ")[2]) == ("OutOfcpu", "requested: 9000, used: 9000, capacity: 9000")
    assert (
        limits.request_admission("bound", NODE, {"cpu": 9000}).verdict == "admitted"
    )  # the tenant's scheduler has judged that
    limits.release_pod("bound")
    limits.add_running("one", NODE, gpus)
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    assert limits.hold_manual_pod("two", NODE, {"nvidia.com/gpu": 1000}) is not None
    limits.release_pod("one")
    assert limits.hold_manual_pod("two", NODE, gpus) is None
    limits.release_pod("two")
    assert limits.hold_manual_pod("three", NODE, gpus) is None
