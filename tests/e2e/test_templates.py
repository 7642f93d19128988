"""A tenant from a template of the platform's own, which switches on Kubernetes' alpha PodGroups: they say its gangs."""

from __future__ import annotations

import os
import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml

from tests.e2e.cluster import TENANT_VERSION, Cluster, Document, Platform, eventually, pod
from vkgateway.controlplane.templates import SHIPPED
from vkgateway.model.api import DEFAULT_KUBERNETES_VERSION
from vkgateway.translate.conditions import ADMITTED_CONDITION

GATES = "WatchList=false,SizeBasedListCostEstimate=false,GenericWorkload=true"
HAS_GROUPS = int((TENANT_VERSION or DEFAULT_KUBERNETES_VERSION).split(".")[1]) >= 36
"""Whether the tenants' release has PodGroups."""


@pytest.fixture
def templates(platform: Platform, tmp_path: Path) -> Iterator[Path]:
    """A folder of templates that the gateway takes instead of those shipped."""
    shutil.copytree(SHIPPED / "default", tmp_path / "default")
    file = platform.data_dir / "gateway.yaml"
    before = file.read_text()
    settings = yaml.safe_load(before)
    settings["controlPlanes"]["templatesDir"] = str(tmp_path)
    begin_anew(platform, yaml.safe_dump(settings))
    yield tmp_path
    begin_anew(platform, before)


def begin_anew(platform: Platform, settings: str) -> None:
    """The gateway reads its settings when it starts, and the supervisor starts one that was ended."""
    (platform.data_dir / "gateway.yaml").write_text(settings)
    old = platform.processes()["gateway"]["pid"]
    os.kill(old, signal.SIGKILL)
    eventually(lambda: platform.processes()["gateway"].get("pid") not in (None, old), what="another gateway")


@pytest.fixture
def grouped(platform: Platform, templates: Path) -> Iterator[Cluster]:
    """A tenant that has PodGroups."""
    shutil.copytree(templates / "default", templates / "groups")
    file = templates / "groups" / "template.yaml"
    template = yaml.safe_load(file.read_text())
    template["components"]["apiserver"]["flags"] = {
        "runtime-config": "scheduling.k8s.io/v1alpha2=true",
        "feature-gates": GATES,
    }
    file.write_text(yaml.safe_dump(template))
    platform.vkgateway("tenant", "create", "grouped", "--pool", "a100", "--template", "groups")
    yield platform.tenant("grouped")
    platform.vkgateway("tenant", "delete", "grouped", "--yes")


def member(name: str) -> Document:
    made = pod(name, container={"resources": {"limits": {"nvidia.com/gpu": "1"}}})
    made["spec"]["schedulingGroup"] = {"podGroupName": "train"}
    return made


def admitted(cluster: Cluster, name: str) -> Document:
    conditions = cluster.get("pod", name)["status"].get("conditions", ())
    return next((entry for entry in conditions if entry["type"] == ADMITTED_CONDITION), {})


@pytest.mark.skipif(not HAS_GROUPS, reason="this release has no PodGroups")
def test_a_pod_group_of_kubernetes_waits_until_it_is_complete_and_starts_as_a_whole(grouped: Cluster) -> None:
    group: Document = {
        "apiVersion": "scheduling.k8s.io/v1alpha2",
        "kind": "PodGroup",
        "metadata": {"name": "train", "namespace": "default"},
        "spec": {"schedulingPolicy": {"gang": {"minCount": 2}}},
    }
    grouped.apply(group, member("one"))
    eventually(lambda: admitted(grouped, "one").get("reason") == "WaitingForMembers", what="one waits for another")
    assert admitted(grouped, "one")["message"] == "1 of 2 pods created"
    grouped.apply(member("two"))
    for name in ("one", "two"):
        grouped.wait_pod(name)
