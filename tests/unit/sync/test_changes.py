"""Changes of a pod that runs: by which subresource they go down, what waits for room, what is told."""

from __future__ import annotations

import copy
from collections.abc import AsyncIterator
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, COMPUTE_NODE, World, until, world
from vkgateway.kube.resources import CONFIG_MAPS, PODS
from vkgateway.sync.pods import change_forwarder

CPU = {"resources": {"requests": {"cpu": "1"}}}


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


def edit(here: World, **spec: Any) -> None:
    """The tenant changes its pod's spec."""
    pod = copy.deepcopy(here.tenant_pod() or {})
    pod["spec"] |= spec
    here.above.store.update(PODS, pod, name="web", namespace="default")


def main(**more: Any) -> list[dict[str, Any]]:
    return [{"name": "main", "image": "busybox", **more}]


async def start(here: World, **spec: Any) -> None:
    here.create(**spec)
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")


def cpu(here: World) -> str:
    found: str = (here.compute_pod() or {})["spec"]["containers"][0]["resources"]["requests"]["cpu"]
    return found


def ephemeral(here: World) -> list[str]:
    return [one["name"] for one in (here.compute_pod() or {})["spec"].get("ephemeralContainers", [])]


def writes_above(here: World) -> list[str]:
    """What the gateway wrote to the tenant's pods but statuses."""
    writes = (request for request in here.above.requests if "/pods/" in request and not request.startswith("GET"))
    return [request for request in writes if "/status" not in request]


async def test_an_ephemeral_container_goes_down_and_what_it_refers_to_before_it(here: World) -> None:
    here.above.store.create(CONFIG_MAPS, {"metadata": {"name": "tools"}, "data": {"a": "b"}}, "default")
    async with here.gateway():
        await start(here)
        debug = {"name": "debug", "image": "busybox", "envFrom": [{"configMapRef": {"name": "tools"}}]}
        edit(here, ephemeralContainers=[debug])
        await until(lambda: ephemeral(here) == ["debug"])
        await here.settled()

    posts = [
        request
        for request in here.below.requests
        if "/ephemeralcontainers" in request or request.endswith(f"{BELOW}/configmaps")
    ]
    assert [request.split()[0] for request in posts] == ["POST", "PATCH"]
    assert writes_above(here) == []


async def test_an_ephemeral_container_of_a_pod_that_waits_goes_down_once_that_is_there(here: World) -> None:
    source = {"configMapRef": {"name": "late"}}
    async with here.gateway():
        here.create(containers=main(envFrom=[source]))
        await until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in here.events()))
        edit(here, ephemeralContainers=[{"name": "debug", "image": "busybox"}])
        await here.settled()
        here.above.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}, "data": {"a": "b"}}, "default")
        await here.forwarded()
        await until(lambda: ephemeral(here) == ["debug"])
    assert writes_above(here) == []


async def test_an_ephemeral_container_that_policy_forbids_is_told_and_the_pod_runs_on(here: World) -> None:
    async with here.gateway():
        await start(here)
        edit(here, ephemeralContainers=[{"name": "root", "image": "b", "securityContext": {"privileged": True}}])
        (event,) = await until(lambda: [one for one in here.events() if one[0] == "ChangeNotForwarded"])
        await here.settled()

    assert "privileged" in event[1]
    assert ephemeral(here) == []
    assert here.phase() == "Running"


def debuggers(here: World) -> dict[str, dict[str, Any]]:
    """The states of the ephemeral containers that the tenant is shown."""
    found = (here.tenant_pod() or {})["status"].get("ephemeralContainerStatuses") or []
    return {one["name"]: one["state"] for one in found}


async def test_an_ephemeral_container_that_does_not_start_is_shown_as_waiting_with_the_reason(here: World) -> None:
    """Which is what `kubectl debug` prints of the container that it waits for; else it waits without a word."""
    root = {"name": "root", "image": "b", "securityContext": {"capabilities": {"add": ["SYS_PTRACE"]}}}
    debug = {"name": "debug", "image": "b"}
    async with here.gateway():
        await start(here)
        edit(here, ephemeralContainers=[root])
        waiting = (await until(lambda: debuggers(here).get("root")))["waiting"]
        assert waiting["reason"] == "ChangeNotForwarded"
        assert waiting["message"].startswith('ephemeral container root does not start: violates PodSecurity "baseline')
        assert "`kubectl debug --profile=baseline`" in waiting["message"]

        edit(here, ephemeralContainers=[root, debug])
        await until(lambda: ephemeral(here) == ["debug"])
        below = copy.deepcopy(here.compute_pod() or {})
        below["status"]["ephemeralContainerStatuses"] = [{"name": "debug", "image": "b", "state": {"running": {}}}]
        here.below.store.update(PODS, below, name="web", namespace=BELOW, status=True)
        await until(lambda: debuggers(here).get("debug") == {"running": {}})
        await here.settled()
        assert debuggers(here) == {"debug": {"running": {}}, "root": {"waiting": waiting}}
    assert writes_above(here) == []


async def test_an_ephemeral_container_that_the_compute_cluster_refuses_is_shown_as_waiting(here: World) -> None:
    async with here.gateway():
        await start(here)
        here.below.fail("PATCH", "/ephemeralcontainers", status=422, reason="Invalid").message = "no such thing"
        edit(here, ephemeralContainers=[{"name": "debug", "image": "b"}])
        state = await until(lambda: debuggers(here).get("debug"))
        await here.settled()
    assert state == {"waiting": {"reason": "ChangeNotForwarded", "message": "no such thing"}}


async def test_an_ephemeral_container_that_policy_forbids_fails_no_pod_that_waits(here: World) -> None:
    async with here.gateway():
        here.create(containers=main(envFrom=[{"configMapRef": {"name": "late"}}]))
        await until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in here.events()))
        edit(here, ephemeralContainers=[{"name": "root", "image": "b", "securityContext": {"privileged": True}}])
        await here.settled()
        assert here.phase() == "Pending"
        here.above.store.create(CONFIG_MAPS, {"metadata": {"name": "late"}, "data": {"a": "b"}}, "default")
        await here.forwarded()
        await until(lambda: any(reason == "ChangeNotForwarded" for reason, _ in here.events()))
    assert ephemeral(here) == []


async def test_an_ephemeral_container_that_the_compute_cluster_refuses_holds_up_none_that_comes_later(
    here: World,
) -> None:
    """Nobody can take it away above: it is sent along with each that comes."""
    bad, good = {"name": "bad", "image": "forbidden/tool"}, {"name": "good", "image": "busybox"}
    here.below.refused_images = ("forbidden/",)
    async with here.gateway():
        await start(here)
        edit(here, ephemeralContainers=[bad])
        await until(lambda: [one for one in here.events() if one[0] == "ChangeNotForwarded"])
        edit(here, ephemeralContainers=[bad, good])
        await until(lambda: ephemeral(here) == ["good"])
        await here.settled()

    assert {message for reason, message in here.events() if reason == "ChangeNotForwarded"} == {
        'admission webhook "images" denied the request: forbidden/tool is not allowed'
    }
    assert here.phase() == "Running"


async def test_a_resize_goes_down_by_its_subresource_and_counts(here: World) -> None:
    here.limit |= {"cpu": 3000}
    async with here.gateway():
        await start(here, containers=main(**CPU))
        here.below.fail("PATCH", f"{BELOW}/pods/web?", status=500)
        edit(here, containers=main(resources={"requests": {"cpu": "2500m"}}))
        await until(lambda: cpu(here) == "2500m")
        await until(
            lambda: '"cpu":2500' in (here.compute_pod() or {})["metadata"]["annotations"]["vkgateway.io/requests"]
        )
        here.create("other", containers=main(**CPU))
        await until(lambda: any(reason == "WaitingForQuota" for reason, _ in here.events()))
        edit(here, containers=main(resources={"requests": {"cpu": "500m"}}))
        await here.forwarded("other")

    assert [request for request in here.below.requests if "/resize" in request]
    assert writes_above(here) == []


async def test_amounts_that_the_compute_cluster_gave_another_size_stay_until_the_tenant_changes_its_own(
    here: World,
) -> None:
    """Its webhooks may look at new pods only."""
    async with here.gateway():
        await start(here, containers=main(**CPU))
        below = copy.deepcopy(here.compute_pod() or {})
        below["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "100m"
        here.below.store.update(PODS, below, name="web", namespace=BELOW)
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["metadata"]["labels"] = {"role": "leader"}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("role"))
        await here.settled()
        assert cpu(here) == "100m"
        edit(here, containers=main(resources={"requests": {"cpu": "2"}}))
        await until(lambda: cpu(here) == "2")
        edit(here, containers=main(**CPU))
        await until(lambda: cpu(here) == "1")
    assert len([request for request in here.below.requests if "/resize" in request]) == 2


async def test_amounts_beyond_what_a_pod_counts_with_are_taken_back(here: World) -> None:
    """A resize that went down, and could not be noted there."""
    async with here.gateway():
        await start(here, containers=main(**CPU))
        below = copy.deepcopy(here.compute_pod() or {})
        below["spec"]["containers"][0]["resources"]["requests"]["cpu"] = "8"
        here.below.store.update(PODS, below, name="web", namespace=BELOW)
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["metadata"]["labels"] = {"role": "leader"}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: cpu(here) == "1")


async def test_a_resize_beyond_the_limit_waits_for_room(here: World, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(change_forwarder, "_RETRY", 0.05)
    here.limit |= {"cpu": 2000}
    async with here.gateway() as sync:
        await start(here, containers=main(**CPU))
        edit(here, containers=main(resources={"requests": {"cpu": "3"}}))
        told = await until(lambda: dict(here.events()).get("ResizeDeferred"))
        assert "needs more cpu 2 on a100.local; in use: cpu 1; limit: cpu 2" in told
        await here.settled()
        assert cpu(here) == "1"
        sync.set_limit("a100.local", here.limit | {"cpu": 4000})
        await until(lambda: cpu(here) == "3")


@pytest.mark.parametrize(("status", "reason"), [(404, "NotFound"), (422, "Invalid"), (403, "Forbidden")])
async def test_a_resize_that_the_compute_cluster_refuses_is_told_once_and_does_not_count(
    here: World, status: int, reason: str
) -> None:
    here.limit |= {"cpu": 3000}
    async with here.gateway():
        await start(here, containers=main(**CPU))
        fault = here.below.fail("PATCH", "/resize", status=status, reason=reason, times=9)
        edit(here, containers=main(resources={"requests": {"cpu": "3"}}))
        await until(lambda: any(one == "ChangeNotForwarded" for one, _ in here.events()))
        await here.settled()
        assert fault.hits == 1
        here.create("other", containers=main(**CPU))
        await here.forwarded("other")


@pytest.mark.parametrize(("status", "reason"), [(422, "Invalid"), (403, "Forbidden"), (400, "BadRequest")])
async def test_a_spec_change_that_is_refused_holds_up_no_labels(here: World, status: int, reason: str) -> None:
    """By the server, its pod security or a webhook: that would be the same tomorrow."""
    async with here.gateway():
        await start(here)
        here.below.fail("PATCH", f"{BELOW}/pods/web", status=status, reason=reason)
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["spec"]["containers"][0]["image"] = "busybox:2"
        pod["metadata"]["labels"] = {"new": "1"}
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("new") == "1")
        await here.settled()

    patches = [one for one in here.below.requests if one.startswith("PATCH") and f"{BELOW}/pods/web" in one]
    assert len(patches) == 2
    assert any(reason == "ChangeNotForwarded" for reason, _ in here.events())


@pytest.mark.parametrize("words", ['cannot patch resource "pods"', "not yet ready to handle request"])
async def test_a_change_that_is_no_matter_of_the_pods_is_tried_again(here: World, words: str) -> None:
    async with here.gateway():
        await start(here)
        fault = here.below.fail("PATCH", f"{BELOW}/pods/web", status=403, reason="Forbidden")
        fault.message = f'pods "web" is forbidden: {words}'
        edit(here, activeDeadlineSeconds=60)
        await until(lambda: (here.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        await here.settled()
    assert fault.hits == 1
    assert not any(reason == "ChangeNotForwarded" for reason, _ in here.events())


async def test_a_pod_that_has_just_gone_below_is_not_taken_for_a_cluster_that_knows_no_resize(here: World) -> None:
    here.limit |= {"cpu": 3000}
    async with here.gateway():
        await start(here, containers=main(**CPU))
        fault = here.below.fail("PATCH", "/resize", status=404, reason="NotFound")
        fault.message = 'pods "web" not found'
        edit(here, containers=main(resources={"requests": {"cpu": "3"}}))
        await until(lambda: cpu(here) == "3")
        await here.settled()
    assert fault.hits == 1
    assert not any(reason == "ChangeNotForwarded" for reason, _ in here.events())


async def test_what_was_written_above_while_the_node_was_away_is_mended(here: World) -> None:
    """A tenant's node controller marks pods of a silent node as not ready."""
    async with here.gateway():
        await start(here)
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["status"]["conditions"] = [{"type": "Ready", "status": "False"}, {"type": "own", "status": "True"}]
        here.above.store.update(PODS, pod, name="web", namespace="default", status=True)
        await until(
            lambda: {"type": "Ready", "status": "True"} in (here.tenant_pod() or {})["status"].get("conditions", [])
        )
    kinds = [entry["type"] for entry in (here.tenant_pod() or {})["status"]["conditions"]]
    assert sorted(kinds) == ["Ready", "own"]


async def test_what_others_set_in_a_status_while_ours_is_on_its_way_stays(here: World) -> None:
    def conditions() -> dict[str, str]:
        found = (here.tenant_pod() or {})["status"].get("conditions", [])
        return {entry["type"]: entry["status"] for entry in found if entry["type"] != "PodScheduled"}

    async with here.gateway():
        await start(here, readinessGates=[{"conditionType": "mine"}])
        await until(lambda: conditions() == {"Ready": "True"})
        await here.settled()
        on_its_way = here.above.hold("PATCH", "/pods/web/status")
        asked = len(here.above.requests)
        below = copy.deepcopy(here.compute_pod() or {})
        below["status"]["conditions"].append({"type": "ContainersReady", "status": "True"})
        below["status"]["podIPs"] = [{"ip": "10.1.2.4"}]
        here.below.store.update(PODS, below, name="web", namespace=BELOW, status=True)
        await here.above.until(lambda: any("/status" in request for request in here.above.requests[asked:]))
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["status"]["conditions"].append({"type": "mine", "status": "True"})
        here.above.store.update(PODS, pod, name="web", namespace="default", status=True)
        on_its_way.set()
        await until(lambda: conditions() == {"Ready": "True", "ContainersReady": "True", "mine": "True"})
        below = copy.deepcopy(here.compute_pod() or {})
        below["status"] |= {"podIPs": [{"ip": "10.1.2.5"}], "conditions": below["status"]["conditions"][:1]}
        here.below.store.update(PODS, below, name="web", namespace=BELOW, status=True)
        await until(lambda: conditions() == {"Ready": "True", "mine": "True"})
    assert (here.tenant_pod() or {})["status"]["podIPs"] == [{"ip": "10.1.2.5"}]


async def test_changes_go_down_though_a_webhook_of_the_tenants_refuses_every_status(here: World) -> None:
    async with here.gateway():
        here.create()
        await here.forwarded()
        here.above.fail("PATCH", "/status", status=403, reason="Forbidden", times=10_000)
        here.run()
        edit(here, activeDeadlineSeconds=60)
        await until(lambda: (here.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        here.create("other")
        await here.forwarded("other")
        here.above.heal()
        await until(lambda: here.phase() == "Running")


async def test_the_generation_in_force_below_is_told(here: World) -> None:
    def observed() -> Any:
        return (here.tenant_pod() or {})["status"].get("observedGeneration")

    def kubelet_sees() -> None:
        pod = copy.deepcopy(here.compute_pod() or {})
        pod["status"]["observedGeneration"] = pod["metadata"]["generation"]
        here.below.store.update(PODS, pod, name="web", namespace=BELOW, status=True)

    async with here.gateway():
        await start(here)
        kubelet_sees()
        await until(lambda: observed() == 1)
        edit(here, activeDeadlineSeconds=60)
        await until(lambda: (here.compute_pod() or {})["spec"].get("activeDeadlineSeconds") == 60)
        await here.settled()
        assert observed() == 1
        kubelet_sees()
        await until(lambda: observed() == 2)
    assert COMPUTE_NODE not in str(here.tenant_pod())
