"""A pool with another scheduler than the arbiter: its mode, the scheduler's objects, and gangs that fill it."""

from __future__ import annotations

import json
from typing import Any

from tests.e2e.cluster import Document, Platform
from tests.e2e.test_arbiter import GANG, find_condition, gpu_job

POOL = "a100"
GPU = "nvidia.com/gpu"
NOTICE, GRACE = 4, 3
"""Seconds."""


def set_mode(platform: Platform, mode: str, **scheduling: Any) -> None:
    """Request a scheduling mode of the pool."""
    pools = read_pools(platform)
    for pool in pools:
        if pool["name"] == POOL:
            pool |= {"scheduling": {"mode": mode, **scheduling}, "noticeSeconds": NOTICE, "graceSeconds": GRACE}
    write_pools(platform, pools)


def read_pools(platform: Platform) -> list[Document]:
    found: list[Document] = platform.compute.get("computecluster", "local")["spec"]["pools"]
    return found


def write_pools(platform: Platform, pools: list[Document]) -> None:
    patch = json.dumps({"spec": {"pools": pools}})
    platform.compute.kubectl("patch", "computecluster", "local", "--type=merge", "-p", patch)


def mode_in_effect(platform: Platform) -> str:
    status = platform.compute.get("computecluster", "local")["status"]
    return next(str(pool.get("schedulingMode")) for pool in status["pools"] if pool["name"] == POOL)


def schedulers_condition(platform: Platform) -> Document:
    return find_condition(platform.compute.get("computecluster", "local"), "SchedulersReady")


def list_objects(platform: Platform, kinds: str) -> list[Document]:
    """Return the gateway's objects at the scheduler; new ones have an empty status."""
    found: list[Document] = json.loads(
        platform.compute.kubectl("get", kinds, "-A", "-l", "vkgateway.io/scheduling-mode", "-o", "json")
    )["items"]
    return [{"status": {}, **each} for each in found]


def gang_job(name: str, count: int, gpus: int, **spec: Any) -> Document:
    """Return a Job whose pods start together or not at all."""
    return gpu_job(name, gpus, parallelism=count, marks={GANG: "job"}, **spec)


def gpus_by_node(platform: Platform) -> dict[str, int]:
    """Return the GPUs that pods of all tenants request on each node."""
    used: dict[str, int] = {}
    for pod in platform.compute.get("pods", "-A")["items"]:
        if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
            continue
        for container in pod["spec"]["containers"]:
            amount = int(container.get("resources", {}).get("requests", {}).get(GPU, 0))
            used[pod["spec"]["nodeName"]] = used.get(pod["spec"]["nodeName"], 0) + amount
    return used
