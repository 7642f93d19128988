"""Tenant from a custom template that enables Kubernetes' alpha PodGroups or Workloads."""

from __future__ import annotations

import base64
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.e2e.cluster import TENANT_VERSION, Cluster, Document, Platform, eventually, pod_manifest
from tests.support.machine import patience_option
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.kinds.pods.translation.conditions import ADMITTED_CONDITION
from vkgateway.runtime.views.annotations import REFRESH_AT, TOKEN_OF

MINOR = int((TENANT_VERSION or DEFAULT_KUBERNETES_VERSION).split(".")[1])


class Alpha(NamedTuple):
    """Alpha API of a release: the version of its kinds, and the feature gates of each program."""

    version: str
    gates: dict[str, str]


ALPHAS: Final = {
    35: Alpha("v1alpha1", {"apiserver": "GenericWorkload=true"}),
    36: Alpha(
        "v1alpha2",
        {
            "apiserver": "GenericWorkload=true,WorkloadWithJob=true",
            "controller-manager": "GenericWorkload=true,WorkloadWithJob=true",
            "scheduler": "GenericWorkload=true",
        },
    ),
}
of_1_36 = pytest.mark.skipif(MINOR != 36, reason="PodGroups and these gates are those of 1.36")
of_1_35 = pytest.mark.skipif(MINOR != 35, reason="spec.workloadRef is of 1.35 alone")


@pytest.fixture(scope="module")
def templates(platform: Platform, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Yield a directory of templates that the gateway uses instead of the shipped ones."""
    folder = tmp_path_factory.mktemp("templates")
    shutil.copytree(platform.write_templates() / "default", folder / "default")
    platform.use_templates(folder)
    yield folder
    platform.use_templates(platform.write_templates())


@pytest.fixture(scope="module")
def grouped(platform: Platform, templates: Path) -> Iterator[Cluster]:
    """Yield a tenant with the alpha kinds of its release and a limit of four GPUs."""
    shutil.copytree(templates / "default", templates / "groups")
    file = templates / "groups" / "template.yaml"
    template = yaml.safe_load(file.read_text())
    alpha = ALPHAS[MINOR]
    for program, gates in alpha.gates.items():
        template["components"][program]["flags"] = {"feature-gates": gates}
    flags = template["components"]["apiserver"]["flags"]
    flags["runtime-config"] = f"scheduling.k8s.io/{alpha.version}=true"
    flags["service-account-extend-token-expiration"] = True
    file.write_text(yaml.safe_dump(template))
    platform.use_templates(templates)
    pool = "a100:limit=nvidia.com/gpu=4"
    platform.vkgateway("tenant", "create", "grouped", "--pool", pool, "--template", "groups")
    yield platform.tenant("grouped")
    platform.vkgateway("tenant", "delete", "grouped", "--yes")


@pytest.fixture
def blocker(grouped: Cluster) -> Iterator[str]:
    """Yield a pod that uses half of the tenant's limit."""
    grouped.apply(pod_manifest("blocker", container=gpu_container(2)))
    grouped.wait_pod("blocker")
    yield "blocker"
    grouped.kubectl("delete", "jobs,pods", "--all", "--grace-period=1")


def gpu_container(number: int) -> dict[str, Any]:
    return {"resources": {"limits": {"nvidia.com/gpu": str(number)}}}


def manifest(kind: str, name: str, spec: Document) -> Document:
    version = f"scheduling.k8s.io/{ALPHAS[MINOR].version}"
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "namespace": "default"}, "spec": spec}


def gang_member(name: str, **spec: Any) -> Document:
    return pod_manifest(name, container=gpu_container(1), **spec)


def admitted_condition(cluster: Cluster, name: str) -> Document:
    conditions = cluster.get("pod", name)["status"].get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == ADMITTED_CONDITION), {})


def gated_pods(cluster: Cluster, *options: str) -> list[str]:
    """Return the gated pods."""
    found = cluster.get("pods", *options)["items"]
    return [
        pod["metadata"]["name"] for pod in found if {"name": ADMISSION_GATE} in pod["spec"].get("schedulingGates", ())
    ]


def pending_gang(platform: Platform, name: str) -> tuple[str, int, str] | None:
    """Return integration, number of pods and reason of a pending gang."""
    found = json.loads(platform.vkgateway("queue", "--tenant", "grouped", "-o", "json"))
    return next(((gang["way"], gang["pods"], gang["code"]) for gang in found if gang["name"] == name), None)


def explained_gang(platform: Platform, name: str) -> Any:
    """Return the output of `explain` about a pod's gang."""
    return json.loads(platform.vkgateway("explain", name, "--tenant", "grouped", "-o", "json"))["gang"]


def test_long_lived_token_from_a_template_is_refreshed(platform: Platform, grouped: Cluster) -> None:
    grouped.apply(pod_manifest("reader"))
    grouped.wait_pod("reader")
    secrets = platform.compute.get("secrets", "-n", "grouped--default")["items"]
    (tokens,) = [secret for secret in secrets if secret["metadata"]["annotations"].get(TOKEN_OF) == "reader"]
    (token,) = tokens["data"].values()
    body = base64.b64decode(token).split(b".")[1]
    claims = json.loads(base64.urlsafe_b64decode(body + b"=" * (-len(body) % 4)))
    assert claims["exp"] - claims["iat"] > 300 * 24 * 3600
    assert float(tokens["metadata"]["annotations"][REFRESH_AT]) < claims["iat"] + 3600
    grouped.kubectl("delete", "pod", "reader", "--wait=false")


@of_1_36
def test_pod_group_starts_when_complete(grouped: Cluster) -> None:
    in_group = {"schedulingGroup": {"podGroupName": "train"}}
    group = manifest("PodGroup", "train", {"schedulingPolicy": {"gang": {"minCount": 2}}})
    grouped.apply(group, gang_member("one", **in_group))
    # The gateway may see the pod before the PodGroup, and says so until the next update.
    eventually(
        lambda: admitted_condition(grouped, "one").get("message") == "1 of 2 pods created",
        what="one waits for another",
    )
    assert admitted_condition(grouped, "one")["reason"] == "WaitingForMembers"
    grouped.apply(gang_member("two", **in_group))
    for name in ("one", "two"):
        grouped.wait_pod(name)
    grouped.kubectl("delete", "pods,podgroups", "--all", "--grace-period=1")


@of_1_36
def test_job_with_generated_workload_starts_as_a_gang(platform: Platform, grouped: Cluster, blocker: str) -> None:
    """One of its two pods would fit. Both wait, and the Job's objects are deleted with it."""
    template = {
        "spec": {
            "containers": pod_manifest("any", container=gpu_container(2))["spec"]["containers"],
            "restartPolicy": "Never",
        }
    }
    counts = {"parallelism": 2, "completions": 2, "completionMode": "Indexed"}
    job = {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "train", "namespace": "default"}}
    grouped.apply(job | {"spec": counts | {"template": template}})
    eventually(lambda: grouped.get("podgroups")["items"], what="a PodGroup of the Job")
    (group,) = grouped.get("podgroups")["items"]
    name = group["metadata"]["name"]
    assert group["spec"]["schedulingPolicy"] == {"gang": {"minCount": 2}}
    eventually(lambda: pending_gang(platform, name) == ("podgroup", 2, "WaitingForQuota"), what="both wait")
    names = gated_pods(grouped, "-l", "job-name=train")
    assert len(names) == 2
    expected = {"WaitingForQuota"}
    eventually(
        lambda: {admitted_condition(grouped, pod_name).get("reason") for pod_name in names} == expected,
        what="both are reported",
    )
    facts = explained_gang(platform, names[0])
    assert (facts["name"], facts["minimum"], facts["waiting"]) == (name, 2, 2)
    grouped.kubectl("delete", "pod", blocker, "--grace-period=1")
    for pod_name in names:
        grouped.wait_pod(pod_name)
    grouped.kubectl("wait", f"podgroup/{name}", "--for=condition=PodGroupScheduled", patience_option(30))
    grouped.kubectl("delete", "job", "train", "--wait=true")
    eventually(lambda: not grouped.get("podgroups,workloads")["items"], what="PodGroup and Workload are deleted")


@of_1_35
def test_each_replica_of_a_workload_group_starts_as_a_gang(platform: Platform, grouped: Cluster, blocker: str) -> None:
    def worker(name: str, replica: str) -> Document:
        return gang_member(name, workloadRef={"name": "train", "podGroup": "workers", "podGroupReplicaKey": replica})

    grouped.apply(worker("a-0", "a"), worker("b-0", "b"))
    eventually(
        lambda: "Workload train" in admitted_condition(grouped, "a-0").get("message", ""),
        what="it waits for the object",
    )
    group = {"name": "workers", "policy": {"gang": {"minCount": 2}}}
    grouped.apply(manifest("Workload", "train", {"podGroups": [group]}))
    pending = ("workload", 1, "WaitingForMembers")
    eventually(lambda: pending_gang(platform, "train/workers/a") == pending, what="it waits for another")
    assert pending_gang(platform, "train/workers/b") == pending
    grouped.apply(worker("a-1", "a"))
    for name in ("a-0", "a-1"):
        grouped.wait_pod(name)
    assert gated_pods(grouped) == ["b-0"]
    assert explained_gang(platform, "a-0")["minimum"] == 2
    grouped.kubectl("delete", "pod", blocker, "--grace-period=1")
    grouped.apply(worker("b-1", "b"))
    grouped.wait_pod("b-0")
