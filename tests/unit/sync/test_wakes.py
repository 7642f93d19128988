"""What has a pod looked at, and what is only the echo of a write of ours."""

from __future__ import annotations

import msgspec
import pytest

from tests.unit.sync.world import BELOW, NODE, TENANT, World, until, world
from vkgateway.kube.resources import PODS
from vkgateway.sync.tenant import TenantSync
from vkgateway.sync.views.pods import TenantPodView

KEY = ("default", "web")


async def running(here: World, sync: TenantSync) -> TenantPodView:
    """A pod that runs, as it is known once its status was written above and that was seen."""
    await here.forwarded()
    here.run()
    pods = sync.cache.pods.store
    await until(lambda: KEY in pods and pods[KEY].phase == "Running")
    await rest(here)
    return pods[KEY]


async def rest(here: World) -> None:
    """Wait until nothing moves, and nothing is to be looked at: of what waits already no second look is asked."""
    await here.settled()
    engine = here._engine
    assert engine is not None
    await until(lambda: not engine.queue.ready_count(TENANT) and not engine._active)


def looks(here: World, sync: TenantSync, old: TenantPodView, new: TenantPodView) -> int:
    """How many looks a change above asks for; told and counted before any worker has its turn."""
    assert here._engine is not None
    before = here._engine.queue.ready_count(TENANT)
    sync.pods.tenant_pod_changed(old, new)
    return here._engine.queue.ready_count(TENANT) - before


async def have_run(here: World, names: list[str]) -> None:
    """Have pods that run; the gateway that started them is gone."""
    async with here.gateway():
        for name in names:
            here.create(name)
            await here.forwarded(name)
            here.run(name)
        await until(lambda: all(here.phase(name) == "Running" for name in names))
        await here.settled()


def looked_at(sync: TenantSync) -> list[tuple[str, str]]:
    """The pods that are looked at from now on, in order."""
    looked: list[tuple[str, str]] = []
    reconcile = sync.pods.reconciler.reconcile

    async def look(key: tuple[str, str]) -> None:
        looked.append(key)
        await reconcile(key)

    sync.pods.reconciler.reconcile = look  # type: ignore[method-assign]
    return looked


def changed(view: TenantPodView, **metadata: object) -> TenantPodView:
    return msgspec.structs.replace(view, metadata=msgspec.structs.replace(view.metadata, **metadata))


def before(sync: TenantSync, view: TenantPodView) -> TenantPodView:
    """The pod as it was when our last write of its status began."""
    return changed(view, resource_version=sync.pods.executor.mirror._written_versions[view.metadata.uid][0])


async def test_our_own_status_asks_for_no_look() -> None:
    async with world() as here:
        here.create()
        async with here.gateway() as sync:
            view = await running(here, sync)
            assert looks(here, sync, before(sync, view), view) == 0


async def test_what_was_let_go_of_a_pod_stays_so_at_the_echo() -> None:
    async with world() as here:
        here.create()
        async with here.gateway() as sync:
            view = await running(here, sync)
            old = before(sync, view)
            old.raw, view.raw = None, b"{}"
            looks(here, sync, old, view)
            assert view.raw is None


@pytest.mark.parametrize("what", ["version", "between", "fingerprint", "node", "deletion", "end", "absence"])
async def test_whatever_else_is_new_asks_for_one(what: str) -> None:
    async with world() as here:
        here.create()
        async with here.gateway() as sync:
            view = await running(here, sync)
            old = before(sync, view)
            if what == "version":
                view = changed(view, resource_version="999999")
            elif what == "between":
                old = changed(old, resource_version="999999")
            elif what == "fingerprint":
                old.fingerprint = "another"
            elif what == "end":
                view.phase = "Succeeded"
            elif what == "absence":
                assert here.link is not None
                here.link.pods._by_tenant.clear()
            elif what == "node":
                old.spec = msgspec.structs.replace(old.spec, node_name=f"not-{NODE}")
            else:
                old = changed(old, deletion_timestamp="2026-01-01T00:00:00Z")
            assert looks(here, sync, old, view) == 1


async def test_what_comes_of_below_after_a_pod_was_removed_asks_for_none() -> None:
    """A finalizer of the tenant's own keeps the pod there above; for us it is over."""
    async with world() as here:
        pod = here.create()
        pod["metadata"]["finalizers"] = ["example.com/mine"]
        here.above.store.update(PODS, pod, name="web", namespace="default")
        async with here.gateway() as sync:
            await running(here, sync)
            here.delete()
            await until(lambda: "deletionTimestamp" in (here.compute_pod() or {})["metadata"])
            await rest(here)
            assert asked_below(here, sync) == 1
            here.end()
            await until(lambda: here.compute_pod() is None)
            await rest(here)
            assert here.tenant_pod() is not None
            assert asked_below(here, sync) == 0


async def test_nothing_is_said_of_what_is_gone_below_before_the_watch_shows_what_was_written() -> None:
    """The end of a pod may have been written, and what stood below let go, sooner than the watch shows it."""
    async with world() as here:
        here.create()
        async with here.gateway() as sync:
            await running(here, sync)
            pods, reconciler = sync.cache.pods.store, sync.pods.reconciler
            shown = pods[KEY]
            pods[KEY] = changed(shown, resource_version="1")
            below = here.compute_pod()
            assert below is not None
            below["metadata"]["finalizers"] = []
            here.below.store.delete(PODS, "web", BELOW, grace=0)
            await until(lambda: here.link is not None and not here.link.pods.tenant_pod_keys(TENANT))
            await reconciler.reconcile(KEY)
            assert here.phase() == "Running"
            pods[KEY] = shown
            await reconciler.reconcile(KEY)
            assert here.phase() == "Failed"


def asked_below(here: World, sync: TenantSync) -> int:
    """How many looks a change below asks for."""
    assert here._engine is not None
    before = here._engine.queue.ready_count(TENANT)
    sync.pods.compute_pod_changed(KEY)
    return here._engine.queue.ready_count(TENANT) - before


async def test_a_gateway_that_comes_back_looks_once_at_each_pod() -> None:
    """Nothing can be said of a pod before all is known below, which may take longer than what is above."""
    async with world() as here:
        names = [f"web-{number}" for number in range(3)]
        await have_run(here, names)
        pods_below = here.below.hold("GET", "/api/v1/pods", times=2)
        async with here.gateway() as sync:
            looked = looked_at(sync)
            await until(lambda: sync.is_complete)
            await rest(here)
            assert looked == []
            pods_below.set()
            await until(lambda: len(looked) >= len(names))
            await rest(here)
            assert sorted(looked) == [("default", name) for name in names]


async def test_what_changed_while_nobody_looked_comes_first() -> None:
    async with world() as here:
        names = [f"web-{number}" for number in range(20)]
        await have_run(here, names)
        here.end("web-17")
        here.create("web-20")
        async with here.gateway() as sync:
            looked = looked_at(sync)
            await until(lambda: len(looked) >= len(names))
            assert set(looked[:2]) == {("default", "web-17"), ("default", "web-20")}
