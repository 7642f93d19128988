"""Life of a pod through the real reconcilers, between two fake API servers."""

from __future__ import annotations

import copy
import functools
import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.support.waiting import wait_until
from tests.unit.sync.world import COMPUTE_NAMESPACE, COMPUTE_NODE, World, start_world
from vkgateway.api.names import (
    MIRROR_FINALIZER,
    NAME_ANNOTATION,
    NAMESPACE_ANNOTATION,
    TENANT_LABEL,
    UID_ANNOTATION,
)
from vkgateway.api.times import render_time
from vkgateway.kinds.pods.reporter import error_message
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, PODS


def wait_deleting(world: World, name: str = "web") -> bool:
    """Wait until the compute pod is being deleted."""
    pod = world.compute_pod(name)
    return pod is not None and "deletionTimestamp" in pod["metadata"]


@pytest.fixture
async def world() -> AsyncIterator[World]:
    async with start_world() as world:
        yield world


async def start_and_stop_gateway(world: World) -> None:
    """Run the pod `web`; the gateway stops then."""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")


async def test_bound_pod_is_forwarded_with_its_owner(world: World) -> None:
    tenant_pod = world.create_pod()
    async with world.run_gateway():
        compute_pod = await world.wait_forwarded()

    metadata = compute_pod["metadata"]
    assert metadata["labels"][TENANT_LABEL] == "alpha"
    assert metadata["annotations"][NAMESPACE_ANNOTATION] == "default"
    assert metadata["annotations"][NAME_ANNOTATION] == "web"
    assert metadata["annotations"][UID_ANNOTATION] == tenant_pod["metadata"]["uid"]
    assert MIRROR_FINALIZER in metadata["finalizers"]


async def test_unbound_pod_is_not_forwarded(world: World) -> None:
    world.create_pod("unbound", node="")
    world.create_pod("bound")
    async with world.run_gateway():
        await world.wait_forwarded("bound")
        await world.wait_settled()

    assert world.compute_pod("unbound") is None


async def test_status_is_mirrored_without_host_names(world: World) -> None:
    await start_and_stop_gateway(world)

    status = (world.tenant_pod() or {})["status"]
    assert status["hostIP"] == "10.213.0.1"
    assert status["podIP"] == "10.1.2.3"
    assert COMPUTE_NODE not in str(world.tenant_pod())


async def test_plain_life_takes_six_writes(world: World) -> None:
    """Create, status, delete, last status, finalizer, remove; each further write needs a reason."""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod()
        await wait_until(lambda: wait_deleting(world))
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None and world.compute_pod() is None)
        await world.wait_settled()

    assert len(world.pod_writes()) == 6, "\n".join(world.pod_writes())


async def test_deleted_tenant_pod_terminates_until_its_compute_pod_is_deleted(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        began = time.monotonic()
        world.delete_pod(grace=7)
        compute_pod = await wait_until(lambda: wait_deleting(world) and world.compute_pod())
        passed = time.monotonic() - began
        assert 6 - passed <= compute_pod["metadata"]["deletionGracePeriodSeconds"] <= 7, "its end is in whole seconds"
        await world.wait_settled()
        assert world.tenant_pod() is not None
        world.end_pod(code=0)
        await wait_until(lambda: world.tenant_pod() is None)


async def test_pod_deleted_before_its_start_ends_before_its_removal(world: World) -> None:
    """A Job that replaces only failed pods waits for this end, and retains the pod with a finalizer until then."""
    source = {"configMapRef": {"name": "lacking"}}
    pod = world.create_pod(containers=[{"name": "main", "image": "busybox", "envFrom": [source]}])
    pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in world.events()))
        world.delete_pod()
        await wait_until(lambda: world.pod_phase() == "Failed")
        await wait_until(lambda: (world.tenant_pod() or {})["metadata"]["deletionGracePeriodSeconds"] == 0)
        await world.wait_settled()
        pod = copy.deepcopy(world.tenant_pod() or {})
        pod["metadata"]["finalizers"] = []
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: world.tenant_pod() is None)
    assert world.compute_pod() is None


async def test_force_deleted_tenant_pod_is_deleted_in_the_compute_cluster(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod(grace=0)
        await wait_until(lambda: wait_deleting(world))
        world.end_pod(code=137)
        await wait_until(lambda: world.compute_pod() is None)


async def test_new_pod_of_the_same_name_waits_for_the_old_compute_pod(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod(grace=0)
        second = world.create_pod()
        await wait_until(lambda: wait_deleting(world))
        world.end_pod(code=137)
        await wait_until(
            lambda: (
                ((world.compute_pod() or {}).get("metadata", {}).get("annotations", {})).get(UID_ANNOTATION)
                == second["metadata"]["uid"]
            )
        )


async def test_deleted_compute_pod_fails_the_tenant_pod_with_a_reason(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
        await world.wait_settled()
        world.end_pod(code=143)
        await wait_until(lambda: world.pod_phase() == "Failed")
        await wait_until(lambda: world.compute_pod() is None)
        await wait_until(world.events)

    status = (world.tenant_pod() or {})["status"]
    assert status["reason"]
    assert any(entry["type"] == "DisruptionTarget" and entry["status"] == "True" for entry in status["conditions"])


MPI_WORKER = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": "worker"}


async def disrupt_pod(world: World, labels: dict[str, str], *, code: int = 143) -> None:
    """Run a pod with these labels and delete its compute pod; its container exits with this code."""
    world.create_pod(labels=labels)
    await world.wait_forwarded()
    world.run_pod()
    await wait_until(lambda: world.pod_phase() == "Running")
    world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    await world.wait_settled()
    world.end_pod(code=code)
    await wait_until(lambda: world.compute_pod() is None)
    await world.wait_settled()


@pytest.mark.parametrize("code", [0, 143], ids=["as sshd ends", "as others do"])
async def test_disrupted_mpi_worker_is_removed_for_its_replacement(world: World, code: int) -> None:
    async with world.run_gateway():
        await disrupt_pod(world, MPI_WORKER, code=code)
        await wait_until(lambda: world.tenant_pod() is None)

    assert any(reason == "DeletionByComputeCluster" for reason, _ in world.events())


@pytest.mark.parametrize(
    "labels", [{}, MPI_WORKER | {"training.kubeflow.org/job-role": "launcher"}], ids=["plain", "launcher"]
)
async def test_other_disrupted_pods_stay_failed(world: World, labels: dict[str, str]) -> None:
    async with world.run_gateway():
        await disrupt_pod(world, labels)

    assert world.pod_phase() == "Failed"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
async def test_worker_that_ended_by_itself_stays(world: World, code: int, phase: str) -> None:
    async with world.run_gateway():
        world.create_pod(labels=MPI_WORKER)
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.end_pod(code=code)
        await wait_until(lambda: world.pod_phase() == phase)
        await world.wait_settled()

    assert world.pod_phase() == phase


async def test_pod_with_an_unseen_end_is_not_started_again(world: World) -> None:
    """The finalizer was removed manually and the pod force-deleted: it has run, so it is lost and not created again."""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        pod = copy.deepcopy(world.compute_pod())
        assert pod is not None
        pod["metadata"]["finalizers"] = []
        world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE, grace=0)
        await wait_until(lambda: world.pod_phase() == "Failed")

    assert world.compute_pod() is None


async def test_end_during_an_outage_is_mirrored(world: World) -> None:
    await start_and_stop_gateway(world)
    world.end_pod(code=3)
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase() == "Failed")

    status = (world.tenant_pod() or {})["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("seconds", [-60, 60], ids=["before", "after"])
async def test_only_an_end_by_deletion_is_reported_as_a_disruption(world: World, code: int, seconds: int) -> None:
    """The gateway was stopped at the end of the pod."""
    await start_and_stop_gateway(world)
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    if seconds < 0:
        world.end_pod(code=code, at=moment)
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    else:
        world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
        world.end_pod(code=code, at=moment)
    async with world.run_gateway():
        await wait_until(lambda: world.compute_pod() is None)
        await world.wait_settled()

    assert world.pod_phase() == ("Failed" if code else "Succeeded")
    status = (world.tenant_pod() or {})["status"]
    disrupted = [entry for entry in status.get("conditions", []) if entry["type"] == "DisruptionTarget"]
    assert (disrupted == []) == (seconds < 0)
    assert ("DeletionByComputeCluster" in {reason for reason, _ in world.events()}) == (seconds > 0)


async def test_end_after_the_deadline_is_the_evictions_however_often_the_deletion_is_requested(world: World) -> None:
    """A second request with a shorter grace period moves the time of the request behind the pod's end."""
    await start_and_stop_gateway(world)
    pod = copy.deepcopy(world.compute_pod())
    assert pod is not None
    now = datetime.now(UTC)
    pod["metadata"]["annotations"] |= {
        "vkgateway.io/eviction-deadline": render_time(now - timedelta(seconds=60)),
        "vkgateway.io/evicted": "PreemptionByVkgateway: makes room",
    }
    world.compute_server.store.update(PODS, pod, name="web", namespace=COMPUTE_NAMESPACE)
    world.end_pod(code=143, at=now - timedelta(seconds=30))
    world.compute_server.store.delete(PODS, "web", COMPUTE_NAMESPACE)
    async with world.run_gateway():
        await wait_until(lambda: world.compute_pod() is None)
        await world.wait_settled()
    assert (world.tenant_pod() or {})["status"]["reason"] == "PreemptionByVkgateway"


async def test_deletions_during_an_outage_are_carried_out(world: World) -> None:
    world.create_pod("forced")
    world.create_pod("graceful")
    async with world.run_gateway():
        for name in ("forced", "graceful"):
            await world.wait_forwarded(name)
            world.run_pod(name)
        await wait_until(lambda: world.pod_phase("forced") == world.pod_phase("graceful") == "Running")
    world.delete_pod("forced", grace=0)
    world.delete_pod("graceful")
    async with world.run_gateway():
        for name in ("forced", "graceful"):
            await wait_until(functools.partial(wait_deleting, world, name))
            world.end_pod(name, code=143)
        await wait_until(lambda: world.compute_server.store.all(PODS) == world.tenant_server.store.all(PODS) == [])


async def test_foreign_object_of_that_name_is_never_touched(world: World) -> None:
    world.compute_server.store.create(
        NAMESPACES,
        {
            "metadata": {
                "name": COMPUTE_NAMESPACE,
                "labels": {TENANT_LABEL: "alpha"},
                "annotations": {
                    NAME_ANNOTATION: "default",
                    UID_ANNOTATION: world.tenant_server.store.get(NAMESPACES, "default")["metadata"]["uid"],
                },
            }
        },
    )
    theirs = world.compute_server.store.create(
        PODS, {"metadata": {"name": "web"}, "spec": {"containers": []}}, COMPUTE_NAMESPACE
    )
    world.create_pod()
    async with world.run_gateway():
        await wait_until(lambda: any(reason == "NameTaken" for reason, _ in world.events()))
        world.delete_pod()
        await wait_until(lambda: world.tenant_pod() is None)

    assert world.compute_pod() == theirs


async def test_pod_with_only_our_label_has_no_owner(world: World) -> None:
    world.compute_server.store.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    theirs = world.compute_server.store.create(
        PODS,
        {
            "metadata": {
                "name": "web",
                "labels": {TENANT_LABEL: "alpha"},
                "annotations": {NAMESPACE_ANNOTATION: "default", NAME_ANNOTATION: "web", UID_ANNOTATION: "x"},
            },
            "spec": {"containers": []},
        },
        "elsewhere",
    )
    world.create_pod("other")
    async with world.run_gateway():
        await world.wait_forwarded("other")
        await world.wait_settled()

    assert world.compute_server.store.find(PODS, "web", "elsewhere") == theirs


async def test_unreachable_compute_cluster_fails_and_deletes_nothing(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        await world.compute_server.stop()
        world.create_pod("second")
        await world.wait_settled()
        assert world.pod_phase() == "Running"
        assert world.pod_phase("second") == "Pending"
        await world.compute_server.start()
        await wait_until(lambda: world.compute_pod("second"))


async def test_forbidden_field_fails_the_pod_with_the_rule(world: World) -> None:
    world.create_pod(hostNetwork=True)
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase() == "Failed")

    assert world.compute_pod() is None
    assert "hostNetwork" in (world.tenant_pod() or {})["status"]["message"] + str(world.events())


async def test_pods_beyond_the_limit_wait_for_capacity(world: World) -> None:
    gpus: dict[str, Any] = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    }
    world.create_pod("first", **gpus)
    async with world.run_gateway():
        await world.wait_forwarded("first")
        world.run_pod("first")
        world.create_pod("second", **gpus)
        await wait_until(lambda: any(reason == "WaitingForQuota" for reason, _ in world.events()))
        assert world.compute_pod("second") is None
        world.end_pod("first")
        await world.wait_forwarded("second")


async def test_label_and_image_changes_are_forwarded(world: World) -> None:
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        pod = copy.deepcopy(world.tenant_pod())
        assert pod is not None
        pod["metadata"]["labels"] = {"tier": "front"}
        pod["spec"]["containers"][0]["image"] = "busybox:2"
        world.tenant_server.store.update(PODS, pod, name="web", namespace="default")
        await wait_until(lambda: (world.compute_pod() or {})["metadata"]["labels"].get("tier") == "front")
        await wait_until(lambda: (world.compute_pod() or {})["spec"]["containers"][0]["image"] == "busybox:2")


async def test_namespaces_selected_by_affinity_are_looked_up(world: World) -> None:
    world.tenant_server.store.create(NAMESPACES, {"metadata": {"name": "web", "labels": {"team": "x"}}})
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "x"}}}
    world.create_pod(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    async with world.run_gateway():
        compute_pod = await world.wait_forwarded()

    ((created,),) = compute_pod["spec"]["affinity"]["podAffinity"].values()
    assert created["namespaces"] == ["alpha--web"]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@pytest.mark.parametrize("nth", range(8))
async def test_life_completes_whichever_write_fails_first(world: World, status: int, nth: int) -> None:
    """If the nth write of a life fails once, at either server, the result is the same."""
    verbs = [
        ("below", "POST", "/pods"),
        ("above", "PATCH", "/status"),
        ("below", "DELETE", "/pods/web"),
        ("above", "PATCH", "/status"),
        ("below", "PATCH", "/pods/web"),
        ("above", "DELETE", "/pods/web"),
        ("below", "POST", "/namespaces"),
        ("below", "POST", "/serviceaccounts"),
    ]
    where, method, path = verbs[nth]
    server = world.compute_server if where == "below" else world.tenant_server
    server.fail(method, path, status=status, times=2)
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
        world.run_pod()
        await wait_until(lambda: world.pod_phase() == "Running")
        world.delete_pod()
        await wait_until(lambda: wait_deleting(world))
        world.end_pod(code=143)
        await wait_until(lambda: world.tenant_pod() is None and world.compute_pod() is None)


async def test_gateway_may_stop_after_every_write(world: World) -> None:
    """With a restarted gateway for every step, each one continues from the observed state."""
    world.create_pod()
    async with world.run_gateway():
        await world.wait_forwarded()
    world.run_pod()
    async with world.run_gateway():
        await wait_until(lambda: world.pod_phase() == "Running")
    world.delete_pod()
    async with world.run_gateway():
        await wait_until(lambda: wait_deleting(world))
    world.end_pod(code=143)
    async with world.run_gateway():
        await wait_until(lambda: world.tenant_pod() is None and world.compute_pod() is None)


@pytest.mark.parametrize(
    "words",
    [
        'Internal error occurred: failed calling webhook "x": Post "https://hook.ops.svc:443/": dial tcp 10.0.0.5:443',
        "rpc error: 10.213.0.1:2379 gave no answer",
    ],
)
def test_server_errors_are_reported_without_addresses(words: str) -> None:
    error = errors.ServerError("POST /api/v1/pods", status=500, server_message=words)
    assert error_message(error) == "a server failed (500); the gateway retries"
    closed = 'User "system:serviceaccount:platform:gateway" cannot create resource "configmaps" in API group ""'
    assert error_message(errors.Forbidden("", status=403, server_message=closed)) == (
        "a server does not allow this request at the moment; the gateway retries"
    )
    assert error_message(errors.ServerError("", status=500, server_message="etcdserver: leader changed")) == (
        "etcdserver: leader changed"
    )
