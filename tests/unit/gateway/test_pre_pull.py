"""Images that the nodes of a pool keep."""

from __future__ import annotations

import copy
from collections.abc import Iterable
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.fakes.rights import Rights
from tests.support.waiting import wait_until
from tests.unit.gateway.conftest import add_compute_cluster, condition, gpu_node
from tests.unit.gateway.test_compute_controller import controller, is_ready
from vkgateway.api.names import SYSTEM_NAMESPACE
from vkgateway.api.types import Pool, PrePull, PrePullStatus
from vkgateway.clusters.pre_pull import keeper
from vkgateway.clusters.pre_pull.daemon_set import (
    IMAGES_ANNOTATION,
    PRE_PULL_LABEL,
    build_daemon_set,
    daemon_set_name,
    images_digest,
)
from vkgateway.clusters.pre_pull.keeper import KeeperPod, PoolProgress, pre_pull_verdict
from vkgateway.kube.client import Client
from vkgateway.kube.resources import COMPUTE_CLUSTERS, DAEMON_SETS, NODES, PODS

Document = dict[str, Any]
IMAGES = ["registry.example/train:2.1", "registry.example/distroless@sha256:" + "0" * 64]
PRE_PULL = {"images": IMAGES, "imagePullSecrets": ["registry"], "parallelism": 2}
POOL = {"name": "a100", "nodeSelector": {"pool": "a100"}, "tolerations": [{"key": "gpu", "operator": "Exists"}]}


@pytest.fixture(autouse=True)
def _soon(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_PULLING_SECONDS", 0.02)
    monkeypatch.setattr(keeper, "_COMPLETE_SECONDS", 0.05)


def keep(server: FakeApiServer, **changes: Any) -> None:
    """Create the ComputeCluster, or change prePull of its pool."""
    pool = POOL | {"prePull": PRE_PULL | changes}
    found = server.store.find(COMPUTE_CLUSTERS, "local")
    if found is None:
        add_compute_cluster(server, pools=[pool])
    else:
        server.store.update(COMPUTE_CLUSTERS, found | {"spec": {"pools": [pool]}}, name="local", namespace="")


def daemon_sets(server: FakeApiServer) -> list[Document]:
    return server.store.all(DAEMON_SETS)


def volumes(server: FakeApiServer) -> list[str]:
    found = daemon_sets(server)
    spec = found[0]["spec"]["template"]["spec"] if found else {}
    return [volume["image"]["reference"] for volume in spec.get("volumes", ())]


def set_status(server: FakeApiServer, *, nodes: int = 2, updated: int = 2, available: int = 2) -> None:
    """Act as the DaemonSet controller."""
    (found,) = daemon_sets(server)
    status = {
        "observedGeneration": found["metadata"]["generation"],
        "desiredNumberScheduled": nodes,
        "currentNumberScheduled": nodes,
        "updatedNumberScheduled": updated,
        "numberAvailable": available,
    }
    name = found["metadata"]["name"]
    server.store.update(
        DAEMON_SETS, copy.deepcopy(found) | {"status": status}, name=name, namespace=SYSTEM_NAMESPACE, status=True
    )


def add_pod(server: FakeApiServer, node: str, *, ready: bool = False, reason: str = "", message: str = "") -> None:
    """Create a pod of the DaemonSet."""
    (found,) = daemon_sets(server)
    template = found["spec"]["template"]["metadata"]
    waiting = {"waiting": {"reason": reason, "message": message}} if reason else {}
    document = {
        "metadata": {"name": f"keep-{node}", **template},
        "spec": {"nodeName": node},
    }
    created = copy.deepcopy(server.store.create(PODS, document, SYSTEM_NAMESPACE))
    status = {
        "conditions": [{"type": "Ready", "status": str(ready)}],
        "containerStatuses": [{"name": "keep", "state": waiting}],
    }
    name = created["metadata"]["name"]
    server.store.update(PODS, created | {"status": status}, name=name, namespace=SYSTEM_NAMESPACE, status=True)


def pulled(server: FakeApiServer) -> Document:
    return condition(server, "ImagesPulled", "local", tenant=False)


def status(server: FakeApiServer) -> Document | None:
    found = server.store.get(COMPUTE_CLUSTERS, "local")["status"]["pools"][0]["prePull"]
    return found if found is None else dict(found)


async def test_images_are_added_by_a_rolling_update_and_reported(server: FakeApiServer, client: Client) -> None:
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        (found,) = daemon_sets(server)
        assert volumes(server) == []
        assert found["metadata"]["namespace"] == SYSTEM_NAMESPACE
        assert found["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 2}
        await wait_until(lambda: pulled(server).get("reason") == "Pulling")

        set_status(server)
        await wait_until(lambda: volumes(server) == sorted(IMAGES))
        assert pulled(server)["status"] == "Unknown"
        set_status(server, updated=1, available=1)
        add_pod(server, "local-0", ready=True)
        await wait_until(lambda: status(server) == {"images": 2, "nodes": 2, "readyNodes": 1})
        set_status(server)
        await wait_until(lambda: pulled(server).get("status") == "True")
        assert status(server) == {"images": 2, "nodes": 2, "readyNodes": 2}
        assert pulled(server)["message"] == "pool a100: 2 of 2 nodes have all images"
        assert is_ready(server)


async def test_failing_image_is_reported_with_the_node_and_the_way_out(server: FakeApiServer, client: Client) -> None:
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        set_status(server)
        await wait_until(lambda: volumes(server))
        set_status(server, available=0)
        add_pod(
            server, "local-1", reason="ImagePullBackOff", message='Back-off pulling image "registry.example/train:2.1"'
        )
        await wait_until(lambda: pulled(server).get("reason") == "PullFailed")
        assert pulled(server)["status"] == "False"
        assert pulled(server)["message"] == (
            'pool a100: node local-1: ImagePullBackOff: Back-off pulling image "registry.example/train:2.1"; check the '
            "names in prePull.images, imagePullSecrets, and that the nodes reach the registry"
        )
        assert is_ready(server)


async def test_nodes_that_are_not_ready_do_not_stop_the_others(server: FakeApiServer, client: Client) -> None:
    keep(server)
    server.store.create(NODES, gpu_node("broken", ready=False))
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        (found,) = daemon_sets(server)
        assert found["spec"]["updateStrategy"]["rollingUpdate"] == {"maxUnavailable": 3}
        set_status(server, nodes=3, updated=3, available=2)
        await wait_until(lambda: volumes(server))
        set_status(server, nodes=3, updated=3, available=2)
        await wait_until(lambda: pulled(server).get("status") == "True")
        assert pulled(server)["message"] == "pool a100: 2 of 3 nodes have all images"


async def test_other_images_replace_the_former_at_once(server: FakeApiServer, client: Client) -> None:
    """The rolling update limits the number of nodes; nothing waits until the former images are complete."""
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        set_status(server)
        await wait_until(lambda: volumes(server))
        keep(server, images=["registry.example/other:1"])
        await wait_until(lambda: volumes(server) == ["registry.example/other:1"])


@pytest.mark.parametrize("images", [[], None])
async def test_empty_list_removes_everything(server: FakeApiServer, client: Client, images: list[str] | None) -> None:
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: pulled(server))
        if images is None:
            found = server.store.get(COMPUTE_CLUSTERS, "local")
            server.store.update(COMPUTE_CLUSTERS, found | {"spec": {"pools": [POOL]}}, name="local", namespace="")
        else:
            keep(server, images=images)
        await wait_until(lambda: not daemon_sets(server))
        await wait_until(lambda: not pulled(server))
        assert status(server) is None


async def test_leftovers_of_another_start_are_removed_but_not_those_of_others(
    server: FakeApiServer, client: Client
) -> None:
    def leave(name: str, gateway: str, cluster: str) -> None:
        labels = {
            PRE_PULL_LABEL: name,
            "vkgateway.io/gateway": gateway,
            "vkgateway.io/compute-cluster": cluster,
        }
        server.store.create(DAEMON_SETS, {"metadata": {"name": name, "labels": labels}}, SYSTEM_NAMESPACE)

    leave("former", "this", "local")
    leave("other-gateway", "other", "local")
    leave("other-cluster", "this", "east")
    add_compute_cluster(server)
    async with controller(server, client):
        await wait_until(lambda: len(daemon_sets(server)) == 2)
        assert {each["metadata"]["name"] for each in daemon_sets(server)} == {"other-gateway", "other-cluster"}


async def test_deleted_compute_cluster_keeps_no_images(server: FakeApiServer, client: Client) -> None:
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        server.store.delete(COMPUTE_CLUSTERS, "local")
        await wait_until(lambda: server.store.find(COMPUTE_CLUSTERS, "local") is None)
    assert daemon_sets(server) == []


async def test_changed_daemon_set_is_repaired(
    server: FakeApiServer, client: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(keeper, "_REPAIR_SECONDS", 0.0)
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        (found,) = copy.deepcopy(daemon_sets(server))
        found["spec"]["template"]["spec"]["tolerations"] = []
        server.store.update(DAEMON_SETS, found, name=found["metadata"]["name"], namespace=SYSTEM_NAMESPACE)
        await wait_until(lambda: daemon_sets(server)[0]["spec"]["template"]["spec"]["tolerations"])


@pytest.mark.parametrize(
    ("code", "message", "reason", "way_out"),
    [
        (422, "spec.template.spec.volumes[0]: must specify a volume type", "ImageVolumesMissing", "Kubernetes 1.35"),
        (422, "spec.template.spec: too new", "Refused", "too new"),
        (403, "quota", "Forbidden", "apply deploy/rbac/compute.yaml"),
    ],
)
async def test_refusal_is_reported_with_a_way_out(
    server: FakeApiServer, client: Client, code: int, message: str, reason: str, way_out: str
) -> None:
    keep(server)
    fault = server.fail("PATCH", "/daemonsets/", status=code, times=1000)
    fault.message = message
    async with controller(server, client):
        await wait_until(lambda: pulled(server).get("reason") == reason)
        assert pulled(server)["status"] == "False"
        assert way_out in pulled(server)["message"]
        await wait_until(lambda: is_ready(server))
        server.heal()
        await wait_until(lambda: pulled(server).get("reason") == "Pulling")


async def test_transient_failure_keeps_the_last_progress(server: FakeApiServer, client: Client) -> None:
    keep(server)
    async with controller(server, client):
        await wait_until(lambda: daemon_sets(server))
        set_status(server)
        await wait_until(lambda: volumes(server))
        set_status(server)
        await wait_until(lambda: pulled(server).get("status") == "True")
        fault = server.fail("GET", "/daemonsets/", status=500, times=3)
        await wait_until(lambda: fault.hits == 3)
        assert pulled(server)["status"] == "True"


async def test_old_role_is_no_problem_for_a_cluster_without_images(server: FakeApiServer, client: Client) -> None:
    assert server.rights is not None
    server.rights = Rights(role for role in _roles() if role["metadata"]["name"] != "vkgateway-pre-pull")
    add_compute_cluster(server)
    async with controller(server, client):
        await wait_until(lambda: is_ready(server))
        assert pulled(server) == {}


def _roles() -> Iterable[Document]:
    from vkgateway.serve import rbac

    return [*rbac.compute_roles(), *rbac.management_roles()]


def build(**changes: Any) -> Document:
    pool = msgspec.convert(POOL | {"prePull": PRE_PULL | changes}, Pool)
    assert pool.pre_pull is not None
    return build_daemon_set(pool, pool.pre_pull, images=pool.pre_pull.images, cluster="local", gateway="this", broken=0)


def test_pods_meet_the_level_restricted_and_need_nothing() -> None:
    pod = build()["spec"]["template"]["spec"]
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
    assert container["securityContext"]["allowPrivilegeEscalation"] is False
    assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
    assert pod["automountServiceAccountToken"] is False
    assert container["resources"] == {"requests": {"cpu": "0", "memory": "0"}}
    assert pod["priorityClassName"] == "vkgateway-low"
    assert pod["nodeSelector"] == POOL["nodeSelector"]
    assert pod["tolerations"] == POOL["tolerations"]
    assert pod["imagePullSecrets"] == [{"name": "registry"}]
    assert [mount["name"] for mount in container["volumeMounts"]] == [volume["name"] for volume in pod["volumes"]]


def test_order_of_images_restarts_no_pod() -> None:
    assert build() == build(images=IMAGES[::-1])
    assert build() != build(images=IMAGES[:1])
    template, other = build()["spec"]["template"], build(parallelism=7)["spec"]["template"]
    assert template == other


def test_names_differ_between_gateways_and_clusters_and_fit_into_a_label() -> None:
    names = {daemon_set_name("p" * 31, cluster=cluster, gateway=gateway) for cluster in "ab" for gateway in "ab"}
    assert len(names) == 4
    assert max(map(len, names)) <= 63


def test_pods_with_former_images_do_not_count() -> None:
    document = {
        "metadata": {"annotations": {IMAGES_ANNOTATION: images_digest(["old"])}},
        "spec": {"nodeName": "n"},
        "status": {"conditions": [{"type": "Ready", "status": "True"}]},
    }
    assert msgspec.convert(document, KeeperPod).is_ready
    assert images_digest(["old"]) != images_digest(["new"])
    assert images_digest([]) == ""


def test_verdict_names_the_pools_that_fail() -> None:
    complete = PoolProgress(PrePullStatus(images=1, nodes=4, ready_nodes=4), is_complete=True)
    failed = PoolProgress(PrePullStatus(images=1, nodes=4), failure="node n: ErrImagePull: x")
    assert pre_pull_verdict([]) is None
    verdict = pre_pull_verdict([("a", complete), ("b", failed), ("c", failed)])
    assert verdict is not None
    assert (verdict.status, verdict.reason) == ("False", "PullFailed")
    assert verdict.message.startswith(
        "pool b: node n: ErrImagePull: x; pool c: node n: ErrImagePull: x; check the names"
    )
    assert PrePull().images == ()
