"""Tests by sums alone whether a guarantee may hold pods. They are necessary conditions; the nodes decide."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from vkgateway.scheduler.core.guarantees.usage import GuaranteeUsage
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Quota


def may_hold_any(usage: GuaranteeUsage, gang: Gang) -> bool:
    """Return whether a guarantee may hold any pod of a gang; a cheap test before `may_hold`."""
    has_devices = any(usage.pool.requests_devices(pod.shape) for pod in gang.pods)
    return usage.guarantees.units_left(gang.tenant) > 0 or not has_devices


def may_hold(
    usage: GuaranteeUsage, quota: Quota, gang: Gang, pods: Sequence[Pod], *, freed: Mapping[str, int] | None = None
) -> bool:
    """Return whether the sums of a guarantee allow these pods of a gang.

    `freed` is the part of the used guarantee that counts as free. Nodes decide for the unit. Pods without devices
    follow the pods of their gang with devices. For a gang without devices, the other resources of the guarantee
    decide, mostly CPU and memory.
    """
    pool, unit = usage.pool, usage.pool.unit_resource
    judged, named = judged_pods(pool, quota, gang, pods)
    if not judged:
        return bool(pods) and any(pod.uid in usage.pods.uids and pool.requests_devices(pod.shape) for pod in gang.pods)
    if not all(pod.shape.amount_of(unit) or any(pod.shape.amount_of(name) for name in named) for pod in judged):
        return False
    used = usage.pods.used_amounts(quota.tenant)
    for name in named:
        held = used.get(name, 0) - (freed or {}).get(name, 0)
        if held + sum(pod.shape.amount_of(name) for pod in judged) > quota.guarantee[name]:
            return False
    return sum(pod.shape.amount_of(unit) for pod in judged) <= usage.guarantees.units_left(quota.tenant)


def judged_pods(pool: Pool, quota: Quota, gang: Gang, pods: Sequence[Pod]) -> tuple[Sequence[Pod], list[str]]:
    """Return the pods that the guarantee must hold, and the resources whose sums count besides the unit."""
    judged = [pod for pod in pods if pool.requests_devices(pod.shape)]
    if judged or any(pool.requests_devices(pod.shape) for pod in gang.pods):
        return judged, [name for name in pool.governed if name in quota.guarantee and name != pool.unit_resource]
    return pods, [name for name in quota.guarantee if name not in pool.governed]
