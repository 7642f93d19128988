"""A pod's way down and back up through the real reconcilers, between two fake API servers."""

from __future__ import annotations

import copy
import functools
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest

from tests.unit.sync.world import BELOW, COMPUTE_NODE, World, until, world
from vkgateway.kube import errors
from vkgateway.kube.resources import NAMESPACES, PODS
from vkgateway.model.names import MIRROR_FINALIZER, NAME_ANNOTATION, NAMESPACE_ANNOTATION, TENANT_LABEL, UID_ANNOTATION
from vkgateway.sync.pods.reconciler import _error_message


def deleting(here: World, name: str = "web") -> bool:
    """Whether the compute pod is being deleted."""
    pod = here.compute_pod(name)
    return pod is not None and "deletionTimestamp" in pod["metadata"]


@pytest.fixture
async def here() -> AsyncIterator[World]:
    async with world() as made:
        yield made


async def test_a_bound_pod_appears_below_and_says_whose_it_is(here: World) -> None:
    above = here.create()
    async with here.gateway():
        below = await here.forwarded()

    metadata = below["metadata"]
    assert metadata["labels"][TENANT_LABEL] == "alpha"
    assert metadata["annotations"][NAMESPACE_ANNOTATION] == "default"
    assert metadata["annotations"][NAME_ANNOTATION] == "web"
    assert metadata["annotations"][UID_ANNOTATION] == above["metadata"]["uid"]
    assert MIRROR_FINALIZER in metadata["finalizers"]


async def test_a_pod_that_is_not_bound_stays_above(here: World) -> None:
    here.create("unbound", node="")
    here.create("bound")
    async with here.gateway():
        await here.forwarded("bound")
        await here.settled()

    assert here.compute_pod("unbound") is None


async def test_status_comes_up_and_names_of_hosts_do_not(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")

    status = (here.tenant_pod() or {})["status"]
    assert status["hostIP"] == "10.213.0.1"
    assert status["podIP"] == "10.1.2.3"
    assert COMPUTE_NODE not in str(here.tenant_pod())


async def test_a_plain_life_takes_six_writes(here: World) -> None:
    """Create, status, delete, last status, finalizer, remove; more would need a reason."""
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete()
        await until(lambda: deleting(here))
        here.end(code=143)
        await until(lambda: here.tenant_pod() is None and here.compute_pod() is None)
        await here.settled()

    assert len(here.writes()) == 6, "\n".join(here.writes())


async def test_deleted_above_stays_terminating_until_it_is_gone_below(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete(grace=7)
        below = await until(lambda: deleting(here) and here.compute_pod())
        assert below["metadata"]["deletionGracePeriodSeconds"] in (6, 7)
        await here.settled()
        assert here.tenant_pod() is not None
        here.end(code=0)
        await until(lambda: here.tenant_pod() is None)


async def test_a_pod_that_is_deleted_before_it_starts_ends_before_it_goes(here: World) -> None:
    """A Job that replaces only failed pods waits for that end, and holds the pod with a finalizer for so long."""
    source = {"configMapRef": {"name": "lacking"}}
    pod = here.create(containers=[{"name": "main", "image": "busybox", "envFrom": [source]}])
    pod["metadata"]["finalizers"] = ["batch.kubernetes.io/job-tracking"]
    here.above.store.update(PODS, pod, name="web", namespace="default")
    async with here.gateway():
        await until(lambda: any(reason == "MandatoryConfigMapNotFound" for reason, _ in here.events()))
        here.delete()
        await until(lambda: here.phase() == "Failed")
        await until(lambda: (here.tenant_pod() or {})["metadata"]["deletionGracePeriodSeconds"] == 0)
        await here.settled()
        pod = copy.deepcopy(here.tenant_pod() or {})
        pod["metadata"]["finalizers"] = []
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: here.tenant_pod() is None)
    assert here.compute_pod() is None


async def test_deleted_by_force_above_is_deleted_below(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete(grace=0)
        await until(lambda: deleting(here))
        here.end(code=137)
        await until(lambda: here.compute_pod() is None)


async def test_a_new_pod_of_the_old_name_waits_until_the_old_one_is_gone_below(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete(grace=0)
        second = here.create()
        await until(lambda: deleting(here))
        here.end(code=137)
        await until(
            lambda: (
                ((here.compute_pod() or {}).get("metadata", {}).get("annotations", {})).get(UID_ANNOTATION)
                == second["metadata"]["uid"]
            )
        )


async def test_deleted_below_becomes_failed_above_with_a_reason(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.below.store.delete(PODS, "web", BELOW)
        await here.settled()
        here.end(code=143)
        await until(lambda: here.phase() == "Failed")
        await until(lambda: here.compute_pod() is None)
        await until(here.events)

    status = (here.tenant_pod() or {})["status"]
    assert status["reason"]
    assert any(entry["type"] == "DisruptionTarget" and entry["status"] == "True" for entry in status["conditions"])


MPI_WORKER = {"training.kubeflow.org/operator-name": "mpi-operator", "training.kubeflow.org/job-role": "worker"}


async def taken_away(here: World, labels: dict[str, str], *, code: int = 143) -> None:
    """A pod with these labels runs, and is deleted below; its program ends so."""
    here.create(labels=labels)
    await here.forwarded()
    here.run()
    await until(lambda: here.phase() == "Running")
    here.below.store.delete(PODS, "web", BELOW)
    await here.settled()
    here.end(code=code)
    await until(lambda: here.compute_pod() is None)
    await here.settled()


@pytest.mark.parametrize("code", [0, 143], ids=["as sshd ends", "as others do"])
async def test_a_worker_that_was_taken_away_makes_room_for_the_next_as_mpi_operator_makes_only_what_is_gone(
    here: World, code: int
) -> None:
    async with here.gateway():
        await taken_away(here, MPI_WORKER, code=code)
        await until(lambda: here.tenant_pod() is None)

    assert any(reason == "DeletionByComputeCluster" for reason, _ in here.events())


@pytest.mark.parametrize(
    "labels", [{}, MPI_WORKER | {"training.kubeflow.org/job-role": "launcher"}], ids=["plain", "launcher"]
)
async def test_others_that_were_taken_away_stay_failed_for_all_to_see(here: World, labels: dict[str, str]) -> None:
    async with here.gateway():
        await taken_away(here, labels)

    assert here.phase() == "Failed"


@pytest.mark.parametrize(("code", "phase"), [(0, "Succeeded"), (1, "Failed")])
async def test_a_worker_that_ended_by_itself_stays(here: World, code: int, phase: str) -> None:
    async with here.gateway():
        here.create(labels=MPI_WORKER)
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.end(code=code)
        await until(lambda: here.phase() == phase)
        await here.settled()

    assert here.phase() == phase


async def test_a_pod_whose_end_was_hidden_is_not_started_again(here: World) -> None:
    """Somebody takes the finalizer off by hand and deletes by force: it ran, so it is lost, not created anew."""
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        pod = copy.deepcopy(here.compute_pod())
        assert pod is not None
        pod["metadata"]["finalizers"] = []
        here.below.store.update(PODS, pod, name="web", namespace=BELOW)
        here.below.store.delete(PODS, "web", BELOW, grace=0)
        await until(lambda: here.phase() == "Failed")

    assert here.compute_pod() is None


async def test_what_ended_while_the_gateway_was_down_is_told_when_it_is_back(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
    here.end(code=3)
    async with here.gateway():
        await until(lambda: here.phase() == "Failed")

    status = (here.tenant_pod() or {})["status"]
    assert status["containerStatuses"][0]["state"]["terminated"]["exitCode"] == 3


@pytest.mark.parametrize("code", [0, 3])
@pytest.mark.parametrize("seconds", [-60, 60], ids=["before", "after"])
async def test_only_what_its_deletion_below_ended_is_told_as_taken_away(here: World, code: int, seconds: int) -> None:
    """Nobody told of the end: the gateway was down."""
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
    moment = datetime.now(UTC) + timedelta(seconds=seconds)
    if seconds < 0:
        here.end(code=code, at=moment)
        here.below.store.delete(PODS, "web", BELOW)
    else:
        here.below.store.delete(PODS, "web", BELOW)
        here.end(code=code, at=moment)
    async with here.gateway():
        await until(lambda: here.compute_pod() is None)
        await here.settled()

    assert here.phase() == ("Failed" if code else "Succeeded")
    status = (here.tenant_pod() or {})["status"]
    taken = [entry for entry in status.get("conditions", []) if entry["type"] == "DisruptionTarget"]
    assert (taken == []) == (seconds < 0)
    assert ("DeletionByComputeCluster" in {reason for reason, _ in here.events()}) == (seconds > 0)


async def test_deletions_while_the_gateway_was_down_are_carried_out(here: World) -> None:
    here.create("forced")
    here.create("graceful")
    async with here.gateway():
        for name in ("forced", "graceful"):
            await here.forwarded(name)
            here.run(name)
        await until(lambda: here.phase("forced") == here.phase("graceful") == "Running")
    here.delete("forced", grace=0)
    here.delete("graceful")
    async with here.gateway():
        for name in ("forced", "graceful"):
            await until(functools.partial(deleting, here, name))
            here.end(name, code=143)
        await until(lambda: here.below.store.all(PODS) == here.above.store.all(PODS) == [])


async def test_something_else_of_that_name_below_is_never_touched(here: World) -> None:
    here.below.store.create(
        NAMESPACES,
        {
            "metadata": {
                "name": BELOW,
                "labels": {TENANT_LABEL: "alpha"},
                "annotations": {
                    NAME_ANNOTATION: "default",
                    UID_ANNOTATION: here.above.store.get(NAMESPACES, "default")["metadata"]["uid"],
                },
            }
        },
    )
    theirs = here.below.store.create(PODS, {"metadata": {"name": "web"}, "spec": {"containers": []}}, BELOW)
    here.create()
    async with here.gateway():
        await until(lambda: any(reason == "NameTaken" for reason, _ in here.events()))
        here.delete()
        await until(lambda: here.tenant_pod() is None)

    assert here.compute_pod() == theirs


async def test_a_pod_that_merely_wears_our_label_is_nobodys(here: World) -> None:
    here.below.store.create(NAMESPACES, {"metadata": {"name": "elsewhere"}})
    theirs = here.below.store.create(
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
    here.create("other")
    async with here.gateway():
        await here.forwarded("other")
        await here.settled()

    assert here.below.store.find(PODS, "web", "elsewhere") == theirs


async def test_an_unreachable_compute_cluster_fails_and_deletes_nothing(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        port = here.below.port
        await here.below.stop()
        here.create("second")
        await here.settled()
        assert here.phase() == "Running"
        assert here.phase("second") == "Pending"
        await here.below.start(port)
        await until(lambda: here.compute_pod("second"))


async def test_a_forbidden_field_fails_the_pod_and_says_which(here: World) -> None:
    here.create(hostNetwork=True)
    async with here.gateway():
        await until(lambda: here.phase() == "Failed")

    assert here.compute_pod() is None
    assert "hostNetwork" in (here.tenant_pod() or {})["status"]["message"] + str(here.events())


async def test_pods_past_the_limit_wait_for_room(here: World) -> None:
    gpus: dict[str, Any] = {
        "containers": [{"name": "main", "image": "x", "resources": {"limits": {"nvidia.com/gpu": "8"}}}]
    }
    here.create("first", **gpus)
    async with here.gateway():
        await here.forwarded("first")
        here.run("first")
        here.create("second", **gpus)
        await until(lambda: any(reason == "WaitingForQuota" for reason, _ in here.events()))
        assert here.compute_pod("second") is None
        here.end("first")
        await here.forwarded("second")


async def test_label_and_image_changes_go_down(here: World) -> None:
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        pod = copy.deepcopy(here.tenant_pod())
        assert pod is not None
        pod["metadata"]["labels"] = {"tier": "front"}
        pod["spec"]["containers"][0]["image"] = "busybox:2"
        here.above.store.update(PODS, pod, name="web", namespace="default")
        await until(lambda: (here.compute_pod() or {})["metadata"]["labels"].get("tier") == "front")
        await until(lambda: (here.compute_pod() or {})["spec"]["containers"][0]["image"] == "busybox:2")


async def test_namespaces_that_affinity_chooses_by_labels_are_looked_up(here: World) -> None:
    here.above.store.create(NAMESPACES, {"metadata": {"name": "web", "labels": {"team": "x"}}})
    term = {"topologyKey": "zone", "labelSelector": {}, "namespaceSelector": {"matchLabels": {"team": "x"}}}
    here.create(affinity={"podAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [term]}})
    async with here.gateway():
        below = await here.forwarded()

    ((made,),) = below["spec"]["affinity"]["podAffinity"].values()
    assert made["namespaces"] == ["alpha--web"]


@pytest.mark.parametrize("status", [0, 429, 500, 503])
@pytest.mark.parametrize("nth", range(8))
async def test_a_life_completes_whichever_write_fails_first(here: World, status: int, nth: int) -> None:
    """Fail the nth write of a life once, at either server: the end is the same."""
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
    server = here.below if where == "below" else here.above
    server.fail(method, path, status=status, times=2)
    here.create()
    async with here.gateway():
        await here.forwarded()
        here.run()
        await until(lambda: here.phase() == "Running")
        here.delete()
        await until(lambda: deleting(here))
        here.end(code=143)
        await until(lambda: here.tenant_pod() is None and here.compute_pod() is None)


async def test_the_gateway_may_die_after_every_write(here: World) -> None:
    """Run a life with a fresh gateway for every step: each finds its place by looking, not by remembering."""
    here.create()
    async with here.gateway():
        await here.forwarded()
    here.run()
    async with here.gateway():
        await until(lambda: here.phase() == "Running")
    here.delete()
    async with here.gateway():
        await until(lambda: deleting(here))
    here.end(code=143)
    async with here.gateway():
        await until(lambda: here.tenant_pod() is None and here.compute_pod() is None)


@pytest.mark.parametrize(
    "words",
    [
        'Internal error occurred: failed calling webhook "x": Post "https://hook.ops.svc:443/": dial tcp 10.0.0.5:443',
        "rpc error: 10.213.0.1:2379 gave no answer",
    ],
)
def test_a_servers_own_troubles_are_told_without_addresses(words: str) -> None:
    error = errors.ServerError("POST /api/v1/pods", status=500, words=words)
    assert _error_message(error) == "a server failed (500); the gateway retries"
    closed = 'User "system:serviceaccount:platform:gateway" cannot create resource "configmaps" in API group ""'
    assert _error_message(errors.Forbidden("", status=403, words=closed)) == (
        "a server does not allow this request at the moment; the gateway retries"
    )
    assert _error_message(errors.ServerError("", status=500, words="etcdserver: leader changed")) == (
        "etcdserver: leader changed"
    )
