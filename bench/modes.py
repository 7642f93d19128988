"""The pool of the benchmarks in another scheduling mode: Kueue or Volcano run in the compute cluster meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any, Final, Literal

import msgspec
import yaml

from bench import kueue, volcano
from bench.platform import GPU_POOL, Platform
from bench.session import Session
from bench.timeline import now
from vkgateway.api.errors import UnavailableError
from vkgateway.api.objects import find_condition
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER, SCHEDULERS_READY, ComputeCluster
from vkgateway.kube.apply import apply_objects
from vkgateway.kube.resources import COMPUTE_CLUSTERS, NAMESPACES

Mode = Literal["kueue", "volcano"]
CONFIGURATION: Final = Path(__file__).parents[1] / "deploy" / "volcano" / "scheduler-configmap.yaml"
"""Configuration of Volcano's scheduler that the gateway ships."""
_READY_WITHIN: Final = 60.0
_decode: Final = msgspec.json.Decoder(ComputeCluster).decode


@contextlib.asynccontextmanager
async def scheduled_by(session: Session, mode: Mode, programs: Path) -> AsyncIterator[None]:
    """Let the scheduler of a mode schedule the pool until the block ends. `programs` are its programs."""
    platform = session.platform
    async with _run_scheduler(session, mode, programs):
        await set_mode(platform, {"mode": mode})
        try:
            yield
        finally:
            await set_mode(platform, {"mode": "native"})


@contextlib.asynccontextmanager
async def _run_scheduler(session: Session, mode: Mode, programs: Path) -> AsyncIterator[None]:
    platform = session.platform
    if mode == "kueue":
        async with kueue.run_kueue(platform, program=programs, cohorts={}, rate=kueue.RATE, report=session.report):
            yield
        return
    config_map = yaml.safe_load(CONFIGURATION.read_text())
    name = config_map["metadata"]["namespace"]
    namespace = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}
    await apply_objects(platform.compute, [namespace, config_map], field_manager="bench")
    mounted = platform.paths.data_dir / "volcano-scheduler.conf"
    mounted.write_text(config_map["data"]["volcano-scheduler.conf"])
    try:
        async with volcano.run_volcano(platform, folder=programs, configuration=mounted, report=session.report):
            yield
    finally:
        await platform.compute.delete(NAMESPACES, name)


async def set_mode(platform: Platform, scheduling: Mapping[str, Any]) -> None:
    """Set the scheduling of the pool, and wait until it is in effect and its scheduler answers."""
    pools = msgspec.to_builtins((await _read_cluster(platform)).spec.pools)
    changed = [{**pool, "scheduling": scheduling} if pool["name"] == GPU_POOL else pool for pool in pools]
    await platform.compute.patch(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER, {"spec": {"pools": changed}})
    deadline = now() + _READY_WITHIN
    while not _is_in_effect(await _read_cluster(platform), str(scheduling["mode"])):
        if now() > deadline:
            raise UnavailableError(f"mode {scheduling['mode']} is not in effect after {_READY_WITHIN:.0f} s")
        await asyncio.sleep(0.2)


def _is_in_effect(cluster: ComputeCluster, mode: str) -> bool:
    modes = {pool.name: pool.scheduling_mode for pool in cluster.status.pools}
    ready = find_condition(cluster.status.conditions, SCHEDULERS_READY)
    return modes.get(GPU_POOL) == mode and (mode == "native" or (ready is not None and ready.status == "True"))


async def _read_cluster(platform: Platform) -> ComputeCluster:
    return _decode(await platform.compute.get(COMPUTE_CLUSTERS, DEFAULT_COMPUTE_CLUSTER))
