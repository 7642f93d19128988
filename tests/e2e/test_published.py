"""Translation of Kubernetes' published test data: Pod Security cases, and pods with every field set."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.e2e.published import module_folder
from tests.unit.translate import samples
from vkgateway.api.objects import Object
from vkgateway.api.types import PodSecurity
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.policy.security import find_violations
from vkgateway.kinds.pods.translation.pod_diff import diff_pods
from vkgateway.kinds.pods.translation.pod_references import find_references
from vkgateway.kinds.pods.translation.to_compute import forward_pod
from vkgateway.kinds.pods.translation.to_tenant import mirror_status
from vkgateway_platform.binaries.catalogue import DEFAULT_VERSIONS

NEWEST = DEFAULT_VERSIONS["kubernetes"].replace("1.", "0.", 1)

INSTEAD = {
    "capabilities_baseline": "capabilities_restricted",
    "hostpathvolumes": "restrictedvolumes",
    "procmount": "procmount_restricted",
    "seccompprofile_baseline": "seccompprofile_restricted",
}
"""Baseline rules that a stricter rule replaces at level restricted."""


def minor_version(name: str) -> int:
    return int(name.split(".")[1])


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_verdicts_equal_pod_security_admission(level: PodSecurity) -> None:
    cases = module_folder("k8s.io/pod-security-admission", NEWEST) / "test" / "testdata" / level
    newest = max((folder for folder in cases.iterdir()), key=lambda folder: minor_version(folder.name))
    wrong, counts = [], {"pass": 0, "fail": 0}
    for file in sorted(newest.glob("*/*.yaml")):
        broken = {
            violation.rule.lower() for violation in find_violations(yaml.safe_load(file.read_text()), level=level)
        }
        rule = file.stem.rstrip("0123456789")
        counts[file.parent.name] += 1
        right = not broken if file.parent.name == "pass" else not broken.isdisjoint({rule, INSTEAD.get(rule)})
        wrong += [] if right else [f"{file.relative_to(cases)}: {sorted(broken)}"]
    assert wrong == []
    assert counts["pass"] >= 15
    assert counts["fail"] >= 34


VERSIONS = {f"1.{number}": ("0.32.0", f"v1.{number}.0") for number in (30, 31)} | {
    "1.32": ("0.32.0", "HEAD"),
    **{f"1.{number}": (NEWEST, f"v1.{number}.0") for number in (33, 34, 35)},
    "1.36": (NEWEST, "HEAD"),
}
STAYS = {
    "nodeName",
    "schedulerName",
    "priority",
    "preemptionPolicy",
    "serviceAccount",
    "overhead",
    "ephemeralContainers",
    "readinessGates",
    "subdomain",
    "schedulingGroup",
    "workloadRef",
}
BECOMES_OTHERS = {"setHostnameAsFQDN"}
"""Field that becomes `hostnameOverride`, because the compute pod's full name would differ with a subdomain."""
CHANGES = {
    "affinity",
    "automountServiceAccountToken",
    "containers",
    "dnsConfig",
    "dnsPolicy",
    "hostAliases",
    "initContainers",
    "nodeSelector",
    "priorityClassName",
    "serviceAccountName",
    "tolerations",
    "topologySpreadConstraints",
    "volumes",
}
NAMING = {
    "secretRef": "name",
    "configMapRef": "name",
    "secretKeyRef": "name",
    "configMapKeyRef": "name",
    "nodePublishSecretRef": "name",
    "secret": "secretName",
    "azureFile": "secretName",
    "configMap": "name",
}
"""Fields that contain the name of a Secret or ConfigMap. In `sources`, a Secret's is `name`."""


@cache
def published_sample(version: str) -> Any:
    release, folder = VERSIONS[version]
    file: Path = module_folder("k8s.io/api", release) / "testdata" / folder / "core.v1.Pod.json"
    return json.loads(file.read_text())


@pytest.fixture(params=list(VERSIONS))
def pod(request: pytest.FixtureRequest) -> Object:
    """Return a pod of a Kubernetes version with every field set and one source for each volume."""
    sample: Object = copy.deepcopy(published_sample(request.param))
    (volume,) = sample["spec"]["volumes"]
    kinds = {kind: source for kind, source in volume.items() if kind != "name"}
    sample["spec"]["volumes"] = [{"name": kind.lower(), kind: source} for kind, source in kinds.items()]
    for projected in (source for kind, source in kinds.items() if kind == "projected"):
        (every,) = projected["sources"]
        projected["sources"] = [{kind: source} for kind, source in every.items()]
    return sample


def name_sources(value: Any, *, projected: bool = False) -> Iterator[Object]:
    """Yield all objects in a pod that name a Secret or ConfigMap, and set a unique name in each."""
    for key, inner in value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ():
        if key in NAMING and isinstance(inner, dict):
            field = "name" if projected and key == "secret" else NAMING[key]
            inner[field] = f"{key.lower()}-{id(inner)}"
            yield {"name": inner[field], "is_map": key.startswith("configMap")}
        yield from name_sources(inner, projected=projected or key == "sources")


def test_pods_of_every_version_are_forwarded_completely(pod: Object) -> None:
    before = copy.deepcopy(pod)
    assert {refusal.rule for refusal in find_refusals(pod, tenant=samples.TENANT, pool=samples.POOL)} >= {
        "hostNamespaces"
    }
    compute_spec = forward_pod(pod, tenant=samples.TENANT, pool=samples.POOL, namespace=samples.BELOW)["spec"]
    assert pod == before
    spec = pod["spec"]
    assert spec.keys() - compute_spec.keys() <= STAYS | BECOMES_OTHERS
    assert {key for key in spec.keys() & compute_spec.keys() if spec[key] != compute_spec[key]} <= CHANGES
    for kind in ("containers", "initContainers"):
        (above,), (below,) = spec[kind], compute_spec[kind]
        assert {key for key in above if above[key] != below.get(key)} <= {"env"}
    # Ephemeral volumes' claims are made above, by the tenant's own controllers: below they are claims like others.
    become = {"ephemeral": "persistentVolumeClaim"}
    kinds = [{become.get(kind, kind) for kind in volume} for volume in spec["volumes"]]
    assert [volume.keys() for volume in compute_spec["volumes"]] == kinds


def test_all_references_of_a_pod_are_found(pod: Object) -> None:
    names = list(name_sources(pod["spec"]))
    found = find_references(pod)
    assert {entry["name"] for entry in names if entry["is_map"]} <= found.config_maps.keys()
    assert {entry["name"] for entry in names if not entry["is_map"]} <= found.secrets.keys()
    assert "nameValue" in found.secrets  # imagePullSecrets
    assert len(names) >= 15


def test_forwarded_pod_has_no_difference(pod: Object) -> None:
    below = forward_pod(pod, tenant=samples.TENANT, pool=samples.POOL, namespace=samples.BELOW)
    assert diff_pods(pod, below, tenant=samples.TENANT, pool=samples.POOL).patch is None


def test_statuses_of_every_version_are_mirrored_completely(pod: Object) -> None:
    below = forward_pod(pod, tenant=samples.TENANT, pool=samples.POOL, namespace=samples.BELOW) | {
        "status": pod["status"]
    }
    patch = mirror_status(below, {"phase": "Pending"}, node_ip="10.213.0.1")
    assert patch is not None
    missing = pod["status"].keys() - patch.keys()
    assert missing <= {
        "qosClass",
        "observedGeneration",
        "nominatedNodeName",
        "resourceClaimStatuses",
        "extendedResourceClaimStatus",
        "nodeAllocatableResourceClaimStatuses",
    }
    for kind in ("initContainerStatuses", "containerStatuses", "ephemeralContainerStatuses"):
        assert patch[kind] == pod["status"][kind]
