"""Changes that enqueue a pod, and echoes of own writes that do not."""

from __future__ import annotations

from typing import cast

import msgspec
import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, NODE, TENANT, World, start_world
from vkgateway.kinds.sources import COMPUTE_PODS, TENANT_PODS
from vkgateway.kube.resources import PODS
from vkgateway.runtime.requests import POD, ReconcileRequest
from vkgateway.runtime.views.ownership import Key
from vkgateway.runtime.views.pods import TenantPodView
from vkgateway.tenants.tenant import TenantSync

KEY = ("default", "web")


async def start_running(world: World, sync: TenantSync) -> TenantPodView:
    """Return a running pod after its status was written and shown by the watch."""
    await world.wait_forwarded()
    world.run_pod()
    pods = sync.scope.cache.pods.store
    await wait_until(lambda: KEY in pods and pods[KEY].phase == "Running")
    await wait_idle(world)
    return pods[KEY]


async def wait_idle(world: World) -> None:
    """Wait until nothing changes and no reconcile request is queued."""
    await world.wait_settled()
    engine = world._engine
    assert engine is not None
    await wait_until(lambda: not engine.queue.ready_count(TENANT) and not engine._active)


def is_enqueued(world: World, sync: TenantSync, old: TenantPodView, new: TenantPodView) -> int:
    """Return how many requests a change of a tenant pod enqueues, counted before any worker runs."""
    assert world._engine is not None
    before = world._engine.queue.ready_count(TENANT)
    sync.scope.watches.notify(TENANT_PODS, old, new)
    return world._engine.queue.ready_count(TENANT) - before


async def finish_pods(world: World, names: list[str]) -> None:
    """Run pods, and stop the gateway that started them."""
    async with world.run_gateway():
        for name in names:
            world.create_pod(name)
            await world.wait_forwarded(name)
            world.run_pod(name)
        await wait_until(lambda: all(world.pod_phase(name) == "Running" for name in names))
        await world.wait_settled()


def reconciled_pods(sync: TenantSync) -> list[tuple[str, str]]:
    """Record the pods that are reconciled from now on, in order."""
    looked: list[tuple[str, str]] = []
    handle = sync.registry.handle_request

    async def look(request: ReconcileRequest) -> None:
        if request.kind == POD.name and sync.is_complete:
            looked.append(cast("Key", request.key))
        await handle(request)

    sync.registry.handle_request = look  # type: ignore[method-assign]
    return looked


def changed_view(view: TenantPodView, **metadata: object) -> TenantPodView:
    return msgspec.structs.replace(view, metadata=msgspec.structs.replace(view.metadata, **metadata))


def previous_view(sync: TenantSync, view: TenantPodView) -> TenantPodView:
    """Return the pod as it was before the last status write."""
    return changed_view(view, resource_version=sync.reconcilers.executor.mirror.written_versions[view.metadata.uid][0])


async def test_own_status_write_enqueues_nothing() -> None:
    async with start_world() as world:
        world.create_pod()
        async with world.run_gateway() as sync:
            view = await start_running(world, sync)
            assert is_enqueued(world, sync, previous_view(sync, view), view) == 0


async def test_dropped_raw_object_stays_dropped_at_the_echo() -> None:
    async with start_world() as world:
        world.create_pod()
        async with world.run_gateway() as sync:
            view = await start_running(world, sync)
            old = previous_view(sync, view)
            old.raw, view.raw = None, b"{}"
            is_enqueued(world, sync, old, view)
            assert view.raw is None


@pytest.mark.parametrize("what", ["version", "between", "fingerprint", "node", "deletion", "end", "absence"])
async def test_any_other_change_enqueues_the_pod(what: str) -> None:
    async with start_world() as world:
        world.create_pod()
        async with world.run_gateway() as sync:
            view = await start_running(world, sync)
            old = previous_view(sync, view)
            if what == "version":
                view = changed_view(view, resource_version="999999")
            elif what == "between":
                old = changed_view(old, resource_version="999999")
            elif what == "fingerprint":
                old.fingerprint = "another"
            elif what == "end":
                view.phase = "Succeeded"
            elif what == "absence":
                assert world.link is not None
                world.link.pods._by_tenant.clear()
            elif what == "node":
                old.spec = msgspec.structs.replace(old.spec, node_name=f"not-{NODE}")
            else:
                old = changed_view(old, deletion_timestamp="2026-01-01T00:00:00Z")
            assert is_enqueued(world, sync, old, view) == 1


async def test_compute_changes_after_removal_enqueue_nothing() -> None:
    """A finalizer of the tenant retains the pod, but the gateway has finished with it."""
    async with start_world() as world:
        pod = world.create_pod()
        pod["metadata"]["finalizers"] = ["example.com/mine"]
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        async with world.run_gateway() as sync:
            await start_running(world, sync)
            world.delete_pod()
            await wait_until(lambda: "deletionTimestamp" in (world.compute_pod() or {})["metadata"])
            await wait_idle(world)
            assert compute_requests(world, sync) == 1
            world.end_pod()
            await wait_until(lambda: world.compute_pod() is None)
            await wait_idle(world)
            assert world.tenant_pod() is not None
            assert compute_requests(world, sync) == 0


async def test_missing_compute_pod_waits_for_the_watch_of_the_last_write() -> None:
    """The pod's end may be written and its compute pod deleted before the watch of the tenant shows it."""
    async with start_world() as world:
        world.create_pod()
        async with world.run_gateway() as sync:
            await start_running(world, sync)
            pods, reconciler = sync.scope.cache.pods.store, sync.reconcilers.pods
            shown = pods[KEY]
            pods[KEY] = changed_view(shown, resource_version="1")
            below = world.compute_pod()
            assert below is not None
            below["metadata"]["finalizers"] = []
            world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE, grace=0)
            await wait_until(lambda: world.link is not None and not world.link.pods.tenant_pod_keys(TENANT))
            await reconciler.reconcile(KEY)
            assert world.pod_phase() == "Running"
            pods[KEY] = shown
            await reconciler.reconcile(KEY)
            assert world.pod_phase() == "Failed"


def compute_requests(world: World, sync: TenantSync) -> int:
    """Return how many requests a change of a compute pod enqueues."""
    assert world._engine is not None
    before = world._engine.queue.ready_count(TENANT)
    sync.scope.watches.notify(COMPUTE_PODS, KEY)
    return world._engine.queue.ready_count(TENANT) - before


async def test_restarted_gateway_reconciles_each_pod_once() -> None:
    """Pods are reconciled only after the compute lists are complete, which may take longer than the tenant's."""
    async with start_world() as world:
        names = [f"web-{number}" for number in range(3)]
        await finish_pods(world, names)
        pods_below = world.compute_server.hold("GET", "/api/v1/pods", times=2)
        async with world.run_gateway() as sync:
            looked = reconciled_pods(sync)
            await wait_until(lambda: sync.is_complete)
            await wait_idle(world)
            assert looked == []
            pods_below.set()
            await wait_until(lambda: len(looked) >= len(names))
            await wait_idle(world)
            assert sorted(looked) == [("default", name) for name in names]


async def test_changes_during_an_outage_are_reconciled_first() -> None:
    async with start_world() as world:
        names = [f"web-{number}" for number in range(20)]
        await finish_pods(world, names)
        world.end_pod("web-17")
        world.create_pod("web-20")
        async with world.run_gateway() as sync:
            looked = reconciled_pods(sync)
            await wait_until(lambda: len(looked) >= len(names))
            assert set(looked[:2]) == {("default", "web-17"), ("default", "web-20")}
