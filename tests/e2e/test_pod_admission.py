"""Pods that the platform would refuse are refused at creation; controllers whose pods fail are slowed down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually, pod
from tests.refused import BY_LEVEL_BASELINE, BY_LEVEL_RESTRICTED, BY_POLICY, pod_of
from vkgateway.controlplane.templates import Templates, TenantFacts
from vkgateway.model.api import TenantPolicy
from vkgateway.translate.policy import find_refusals

POLICY = "validatingadmissionpolicy/vkgateway-pods"
INLINE: dict[str, Any] = {"volumes": [{"name": "data", "csi": {"driver": "disks.example.org"}}]}
DROPPED = {"trust-bundle", "pod-certificate"}
"""Samples of which the API server leaves an empty source, since its feature gate is off."""
INVALID = {"proc-mount"}
"""Samples that Kubernetes refuses itself."""


@pytest.fixture(scope="module")
def loose(alpha: Cluster) -> Iterator[str]:
    """A namespace whose labels ask for a weaker level of pod security than the tenant has."""
    name = "loose"
    alpha.kubectl("create", "namespace", name)
    alpha.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
    yield name
    alpha.kubectl("delete", "namespace", name, "--wait=false")


def denials(alpha: Cluster, pods: list[dict[str, Any]]) -> dict[str, str]:
    """What the API server says of pods that it does not let in, by name."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    told = alpha.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=listed).err
    return {
        name: words.split("denied request: ")[-1]
        for name, words in re.findall(r'pods "(.+?)" is forbidden: (.*)', told)
    }


def said(pod: dict[str, Any], policy: TenantPolicy) -> str:
    """What the gateway says of a pod."""
    first, *more = [refusal.message for refusal in find_refusals(pod, tenant=policy)]
    return first + (f" (and {len(more)} more)" if more else "")


def test_the_api_server_refuses_what_the_gateway_would_with_the_same_words(alpha: Cluster, loose: str) -> None:
    alpha.apply({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "k"})
    samples = {**BY_POLICY, **BY_LEVEL_BASELINE}
    pods = [pod_of(name, fields, namespace=loose) for name, fields in samples.items() if name not in INVALID]
    expected = {pod["metadata"]["name"]: said(pod, TenantPolicy()) for pod in pods}
    eventually(lambda: "inline-csi" in denials(alpha, pods), what="the policy in force")

    denied = denials(alpha, pods)

    assert {name: denied.get(name) for name in expected if name not in DROPPED} == {
        name: words for name, words in expected.items() if name not in DROPPED
    }
    assert all("clusterTrustBundle" in denied[name] for name in DROPPED)
    alpha.kubectl("delete", "runtimeclass", "kata")


@pytest.fixture
def strict(alpha: Cluster) -> Iterator[TenantPolicy]:
    """A policy of level restricted, whose rules are in force in alpha beside its own."""
    policy = TenantPolicy(pod_security="restricted")
    facts = TenantFacts(
        name="alpha",
        template="default",
        kubernetes_version="1.36.3",
        address="10.0.0.1",
        port=443,
        cluster_domain="cluster.local",
        policy=policy,
    )
    rules, binding, *_ = [
        found
        for found in Templates().load_template("default").render_objects(facts)
        if found["metadata"]["name"].startswith("vkgateway-pod-security")
    ]
    rules["metadata"] = binding["metadata"] = {"name": "strict"}
    binding["spec"]["policyName"] = "strict"
    alpha.apply(rules, binding)
    yield policy
    alpha.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "strict")


def test_the_same_of_level_restricted(alpha: Cluster, loose: str, strict: TenantPolicy) -> None:
    of_volumes = "all-but-volumes"
    """Another rule refuses the volume of this sample, too, and only one of the refusals is told."""
    pods = [pod_of(name, fields, namespace=loose) for name, fields in BY_LEVEL_RESTRICTED.items()]
    eventually(lambda: "plain" in denials(alpha, pods), what="the policy in force")

    denied = denials(alpha, pods)

    expected = {pod["metadata"]["name"]: said(pod, strict) for pod in pods}
    assert of_volumes in denied
    assert denied | {of_volumes: ""} == expected | {of_volumes: ""}


def deployment(name: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    labels = {"app": name, **(labels or {})}
    template = {"metadata": {"labels": labels}, "spec": pod(name, **spec)["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def pods_of(alpha: Cluster, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = alpha.get("pods", "-l", f"app={name}")["items"]
    return found


def test_a_controller_of_refused_pods_says_so_and_makes_none(alpha: Cluster) -> None:
    alpha.apply(deployment("vaulted", **INLINE))

    def told() -> list[str]:
        events = alpha.get("events", "--field-selector", "reason=FailedCreate")["items"]
        return [event["message"] for event in events if event["involvedObject"]["name"].startswith("vaulted-")]

    eventually(told, what="FailedCreate")
    assert "spec.volumes[data].csi: inline CSI volumes are not supported" in told()[0]
    assert pods_of(alpha, "vaulted") == []
    alpha.kubectl("delete", "deployment", "vaulted")


def test_the_gateway_refuses_what_slips_through_and_a_policy_is_put_back_as_it_is_now(
    platform: Platform, alpha: Cluster
) -> None:
    def change(secrets: list[str]) -> None:
        spec = json.dumps({"spec": {"policy": {"imagePullSecrets": secrets}}})
        platform.compute.kubectl("patch", "tenant", "alpha", "--type=merge", "-p", spec)

    private = pod("private", imagePullSecrets=[{"name": "b"}])
    alpha.kubectl("delete", POLICY)
    try:
        eventually(lambda: not denials(alpha, [pod("inline", **INLINE)]), what="pods let in without the policy")
        alpha.apply(pod("inline", **INLINE))
        eventually(lambda: alpha.phase("inline") == "Failed", what="the pod failed")
        assert alpha.get("pod", "inline")["status"]["reason"] == "PolicyRefused"

        change(["a"])
        words = "spec.imagePullSecrets[b]: image pull secret b is not allowed for this tenant; allowed secrets: a"
        eventually(lambda: denials(alpha, [private]).get("private") == words, what="the new policy in force")
    finally:
        change(["*"])
        alpha.kubectl("delete", "pod", "inline", "--ignore-not-found", "--wait=false")
    eventually(lambda: not denials(alpha, [private]), what="the old policy in force")


def test_pods_that_only_the_compute_cluster_refuses_fail_ever_slower(platform: Platform, alpha: Cluster) -> None:
    """Three at once, then none for ten seconds, though the controller replaces each at once."""
    meta = {"name": "not-here"}
    policy = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicy",
        "metadata": meta,
        "spec": {
            "matchConstraints": {
                "resourceRules": [
                    {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                ]
            },
            "validations": [
                {
                    "expression": "!('not-here' in object.metadata.?labels.orValue({}))",
                    "message": "not in this cluster",
                    "reason": "Forbidden",
                }
            ],
        },
    }
    binding = {
        "apiVersion": "admissionregistration.k8s.io/v1",
        "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": meta,
        "spec": {"policyName": "not-here", "validationActions": ["Deny"]},
    }
    platform.compute.apply(policy, binding)
    probe = pod("probe")
    probe["metadata"]["labels"] = {"not-here": "yes"}
    eventually(lambda: denials(platform.compute, [probe]), what="the compute cluster's policy in force")
    try:
        alpha.apply(deployment("misfit", {"not-here": "yes"}))

        def waiting() -> list[str]:
            conditions = [
                one
                for pod in pods_of(alpha, "misfit")
                for one in pod["status"].get("conditions") or []
                if one["type"] == "vkgateway.io/Forwarded"
            ]
            return [one["message"] for one in conditions if one["reason"] == "ForwardingRefused"]

        (why,) = eventually(waiting, what="a pod that fails later")
        assert "not in this cluster" in why
        assert len(pods_of(alpha, "misfit")) == 4
    finally:
        platform.compute.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "not-here")
    eventually(lambda: any(pod["status"]["phase"] == "Running" for pod in pods_of(alpha, "misfit")), what="it runs")
    alpha.kubectl("delete", "deployment", "misfit")


def test_a_chart_may_bring_a_global_default_priority(alpha: Cluster) -> None:
    mine = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "mine"},
        "value": 100,
        "globalDefault": True,
    }
    alpha.apply(mine)
    alpha.apply(pod("ordinary"))
    alpha.wait_pod("ordinary")
    assert alpha.get("pod", "ordinary")["spec"]["priorityClassName"] == "mine"
    alpha.kubectl("delete", "priorityclass", "mine")
    alpha.kubectl("delete", "pod", "ordinary", "--wait=false")
