"""Limits of nodes: pods bound beyond them wait in order and run when capacity is free."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from vkgateway.kinds.pods.limit_tracker import WAITING_FOR_QUOTA, TenantLimits

NODE = "a100.local"


def gpu_amounts(count: int) -> dict[str, int]:
    return {"nvidia.com/gpu": count * 1000}


def test_pod_within_limit_is_admitted() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))

    assert limits.request_admission("a", NODE, gpu_amounts(8)).verdict == "admitted"


def test_pod_beyond_limit_waits_with_numbers() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))
    limits.request_admission("a", NODE, gpu_amounts(6))

    held = limits.request_admission("b", NODE, gpu_amounts(4))

    assert held.verdict == "held"
    assert held.code == WAITING_FOR_QUOTA
    assert held.message == ("needs nvidia.com/gpu 4 on a100.local; in use: nvidia.com/gpu 6; limit: nvidia.com/gpu 8")


def test_missing_resource_is_never_admitted() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))

    assert limits.request_admission("a", NODE, {"amd.com/gpu": 1000}).verdict == "held"


def test_repeated_request_counts_once() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))
    limits.request_admission("a", NODE, gpu_amounts(8))

    assert limits.request_admission("a", NODE, gpu_amounts(8)).verdict == "admitted"
    limits.release_pod("a")
    assert limits.request_admission("b", NODE, gpu_amounts(8)).verdict == "admitted"


def test_release_admits_waiting_pods_in_request_order() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))
    limits.request_admission("a", NODE, gpu_amounts(8))
    limits.request_admission("b", NODE, gpu_amounts(4))
    limits.request_admission("c", NODE, gpu_amounts(4))

    assert limits.release_pod("a") == ["b", "c"]


def test_running_pods_count_beyond_lowered_limit() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(4))
    limits.add_running("a", NODE, gpu_amounts(8))

    assert limits.request_admission("b", NODE, gpu_amounts(1)).verdict == "held"


def test_running_pod_grows_if_capacity_is_free_and_keeps_amount_otherwise() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(8))
    limits.add_running("a", NODE, gpu_amounts(4))

    assert limits.resize_pod("a", gpu_amounts(8)).verdict == "admitted"
    refused = limits.resize_pod("a", gpu_amounts(9))
    assert (refused.verdict, limits.counted_requests("a")) == ("held", gpu_amounts(8))
    assert "needs more nvidia.com/gpu 1 on" in refused.message
    assert limits.request_admission("b", NODE, gpu_amounts(1)).verdict == "held"

    assert limits.resize_pod("a", gpu_amounts(2)).verdict == "admitted"
    assert limits.request_admission("b", NODE, gpu_amounts(6)).verdict == "admitted"


def test_pod_beyond_lowered_limit_may_shrink() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(2))
    limits.add_running("a", NODE, gpu_amounts(8))
    assert limits.resize_pod("a", gpu_amounts(4)).verdict == "admitted"
    assert limits.counted_requests("a") == gpu_amounts(4)
    assert limits.counted_requests("b") is None


@given(st.lists(st.tuples(st.integers(0, 5), st.integers(0, 9), st.booleans()), max_size=60))
def test_limit_is_never_exceeded(steps: list[tuple[int, int, bool]]) -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, gpu_amounts(10))
    running: dict[str, int] = {}
    for pod, size, leaves in steps:
        uid = str(pod)
        if leaves:
            limits.release_pod(uid)
            running.pop(uid, None)
        elif limits.request_admission(uid, NODE, gpu_amounts(size)).verdict == "admitted":
            running.setdefault(uid, size)
        assert sum(running.values()) <= 10


def test_manually_bound_pod_is_rejected_like_by_kubelet() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"pods": 2000, "cpu": 4000, "memory": 8_000_000_000, "nvidia.com/gpu": 2000})
    limits.request_admission("one", NODE, {"pods": 1000, "cpu": 3500, "memory": 1000})
    admission = limits.request_admission("two", NODE, {"pods": 1000, "memory": 9_000_000_000, "cpu": 501}, by_hand=True)
    assert (admission.verdict, admission.code) == ("rejected", "OutOfcpu")
    assert admission.message == "Node didn't have enough resource: cpu, requested: 501, used: 3500, capacity: 4000"
    admission = limits.request_admission("two", NODE, {"pods": 1000, "memory": 9_000_000_000}, by_hand=True)
    assert (
        admission.message == "Node didn't have enough resource: memory, requested: 9000000, used: 1, capacity: 8000000"
    )
    assert limits.held_pods(NODE) == []
    assert limits.request_admission("two", NODE, {"pods": 1000, "cpu": 500}, by_hand=True).verdict == "admitted"
    assert limits.request_admission("three", NODE, {"pods": 1000}, by_hand=True).code == "OutOfpods"
    assert limits.request_admission("four", NODE, {"pods": 1000}).verdict == "held"


def test_unknown_node_rejects_no_pod() -> None:
    limits = TenantLimits()
    assert limits.request_admission("one", NODE, {"cpu": 1}, by_hand=True).verdict == "held"
    assert limits.hold_manual_pod("two", NODE, {"cpu": 1}) is None


def test_unrequested_resource_rejects_no_pod() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"pods": 10_000, "cpu": 1000})
    limits.add_running("one", NODE, {"pods": 1000, "cpu": 3000})
    assert limits.hold_manual_pod("two", NODE, {"pods": 1000, "cpu": 0, "nvidia.com/gpu": 0}) is None


def test_manual_pod_outside_arbiter_counts_once() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"cpu": 1500})
    assert limits.hold_manual_pod("one", NODE, {"cpu": 1000}) is None
    assert limits.request_admission("one", NODE, {"cpu": 1000}, by_hand=True).verdict == "admitted"
    assert limits.request_admission("two", NODE, {"cpu": 500}, by_hand=True).verdict == "admitted"


def test_waiting_manual_pods_count_against_each_other() -> None:
    limits = TenantLimits()
    limits.set_limit(NODE, {"nvidia.com/gpu": 8000, "cpu": 9000})
    gpus = {"nvidia.com/gpu": 8000, "cpu": 9000}
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    refusal = limits.hold_manual_pod("two", NODE, gpus)
    assert refusal is not None
    assert (refusal.code, refusal.message.partition(", ")[2]) == (
        "OutOfcpu",
        "requested: 9000, used: 9000, capacity: 9000",
    )
    assert (
        limits.request_admission("bound", NODE, {"cpu": 9000}).verdict == "admitted"
    )  # the tenant's scheduler decided this
    limits.release_pod("bound")
    limits.add_running("one", NODE, gpus)
    assert limits.hold_manual_pod("one", NODE, gpus) is None
    assert limits.hold_manual_pod("two", NODE, {"nvidia.com/gpu": 1000}) is not None
    limits.release_pod("one")
    assert limits.hold_manual_pod("two", NODE, gpus) is None
    limits.release_pod("two")
    assert limits.hold_manual_pod("three", NODE, gpus) is None
