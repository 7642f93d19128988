"""A pool with another scheduler than the arbiter: its mode, the scheduler's objects, and gangs that fill it."""

from __future__ import annotations

import contextlib
import json
import math
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Document, Platform, eventually
from tests.e2e.controllers import run_kueue, run_volcano
from tests.e2e.test_arbiter import GANG, find_condition, gpu_job
from tests.support.machine import slowness
from vkgateway_platform.binaries.errors import NoNetworkError, NoToolchainError

POOL = "a100"
GPU = "nvidia.com/gpu"
NOTICE, GRACE = math.ceil(8 * slowness()), 3
"""Seconds. Tests must see all pods of a gang within their notice."""
WORKLOADS, POD_GROUPS = "workloads.kueue.x-k8s.io", "podgroups.scheduling.volcano.sh"
"""With their groups: Kubernetes has kinds of the same names."""
_SCHEDULERS = {
    "kueue": (run_kueue, f"{WORKLOADS},clusterqueues,localqueues"),
    "volcano": (run_volcano, f"{POD_GROUPS},queues.scheduling.volcano.sh,priorityclasses"),
}
"""By mode: what runs the scheduler, and the kinds of the gateway's objects there."""


@contextlib.contextmanager
def scheduled_by(platform: Platform, mode: str, folder: Path, *, name: str = POOL) -> Iterator[None]:
    """Run the scheduler of a mode, and let it schedule a pool until the block ends. Nothing of it is left then."""
    run, kinds = _SCHEDULERS[mode]
    with contextlib.ExitStack() as stack:
        try:
            stack.enter_context(run(platform.compute, folder))
        except (NoNetworkError, NoToolchainError) as error:
            pytest.skip(f"{mode} cannot be built here: {error}")
        pools = read_pools(platform)
        set_mode(platform, mode, name=name)
        eventually(lambda: mode_in_effect(platform, name) == mode, what=f"mode {mode} in effect")
        eventually(lambda: schedulers_condition(platform).get("status") == "True", what=f"{mode} answers")
        yield
        write_pools(platform, pools)
        eventually(lambda: mode_in_effect(platform, name) == "native", what="mode native in effect")
        eventually(lambda: not list_objects(platform, kinds), what=f"no object left at {mode}")


@contextlib.contextmanager
def watch_attempts(platform: Platform, mode: str, folder: Path) -> Iterator[Callable[[], list[str]]]:
    """Watch the gateway's attempts at a scheduler; the result returns the names of all that existed since."""
    kind, output = _SCHEDULERS[mode][1].split(",")[0], folder / "attempts"
    options = ("-A", "-l", "vkgateway.io/scheduling-mode", "--watch", "-o", "name")
    with output.open("w") as file:
        process = subprocess.Popen([*platform.compute.kubectl_command, "get", kind, *options], stdout=file)
        try:
            yield lambda: sorted(set(output.read_text().split()))
        finally:
            process.kill()
            process.wait()


def set_mode(platform: Platform, mode: str, *, name: str = POOL, **scheduling: Any) -> None:
    """Request a scheduling mode of a pool."""
    pools = read_pools(platform)
    for pool in pools:
        if pool["name"] == name:
            pool |= {"scheduling": {"mode": mode, **scheduling}, "noticeSeconds": NOTICE, "graceSeconds": GRACE}
    write_pools(platform, pools)


def read_pools(platform: Platform) -> list[Document]:
    found: list[Document] = platform.compute.get("computecluster", "local")["spec"]["pools"]
    return found


def write_pools(platform: Platform, pools: list[Document]) -> None:
    patch = json.dumps({"spec": {"pools": pools}})
    platform.compute.kubectl("patch", "computecluster", "local", "--type=merge", "-p", patch)


def mode_in_effect(platform: Platform, name: str = POOL) -> str:
    status = platform.compute.get("computecluster", "local")["status"]
    return next(str(pool.get("schedulingMode")) for pool in status["pools"] if pool["name"] == name)


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
    """Return the GPUs that pods of all tenants request on each node, without the nodes where they request none."""
    used: dict[str, int] = {}
    for pod in platform.compute.get("pods", "-A")["items"]:
        if pod["status"].get("phase") in ("Succeeded", "Failed") or not pod["spec"].get("nodeName"):
            continue
        for container in pod["spec"]["containers"]:
            amount = int(container.get("resources", {}).get("requests", {}).get(GPU, 0))
            used[pod["spec"]["nodeName"]] = used.get(pod["spec"]["nodeName"], 0) + amount
    return {name: amount for name, amount in used.items() if amount}
