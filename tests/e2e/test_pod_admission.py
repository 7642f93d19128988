"""Pods against policy are refused at creation. Controllers whose pods fail are slowed down."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from datetime import datetime
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually, pod_manifest
from tests.e2e.test_arbiter import find_condition
from tests.refused import ALLOWED, BY_LEVEL_BASELINE, BY_LEVEL_RESTRICTED, BY_POLICY, pod_of
from vkgateway.api.types import TenantPolicy
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.planes.templates import Templates, TenantFacts

POLICY = "validatingadmissionpolicy/vkgateway-pods"
INLINE: dict[str, Any] = {"volumes": [{"name": "data", "csi": {"driver": "disks.example.org"}}]}
DROPPED = {"trust-bundle", "pod-certificate"}
"""Samples of which the API server leaves an empty source, because its feature gate is off."""
INVALID = {"proc-mount"}
"""Samples that Kubernetes itself refuses."""


@pytest.fixture(scope="module")
def loose(alpha: Cluster) -> Iterator[str]:
    """Yield a namespace whose labels set a weaker pod security level than the tenant's."""
    name = "loose"
    alpha.create_namespace(name)
    alpha.kubectl("label", "namespace", name, "pod-security.kubernetes.io/enforce=privileged")
    probe = pod_manifest("probe", hostNetwork=True)
    probe["metadata"]["namespace"] = name
    trying = ("create", "--dry-run=server", "-f", "-")
    # Before that, the API server's own check of the level refuses it, in the same words.
    eventually(
        lambda: "ValidatingAdmissionPolicy" in alpha.try_kubectl(*trying, stdin=json.dumps(probe)).err,
        what="the weaker level in force, and the tenant's policy",
    )
    yield name
    alpha.kubectl("delete", "namespace", name, "--wait=false")


def denials(alpha: Cluster, pods: list[dict[str, Any]]) -> dict[str, str]:
    """Return the API server's messages about refused pods, by name. Any other failure fails the test."""
    listed = json.dumps({"apiVersion": "v1", "kind": "List", "items": pods})
    result = alpha.try_kubectl("create", "--dry-run=server", "-f", "-", stdin=listed)
    denied = {
        name: words.split("denied request: ")[-1]
        for name, words in re.findall(r'pods "(.+?)" is forbidden: (.*)', result.err)
    }
    assert denied or result.code == 0, str(result)
    return denied


def gateway_message(pod: dict[str, Any], policy: TenantPolicy) -> str:
    """Return the gateway's message about a pod."""
    first, *more = [refusal.message for refusal in find_refusals(pod, tenant=policy)]
    return first + (f" (and {len(more)} more)" if more else "")


def test_api_server_refuses_pods_with_the_gateways_messages(alpha: Cluster, loose: str) -> None:
    alpha.apply({"apiVersion": "node.k8s.io/v1", "kind": "RuntimeClass", "metadata": {"name": "kata"}, "handler": "k"})
    samples = {**BY_POLICY, **BY_LEVEL_BASELINE}
    pods = [pod_of(name, fields, namespace=loose) for name, fields in samples.items() if name not in INVALID]
    expected = {pod["metadata"]["name"]: gateway_message(pod, TenantPolicy()) for pod in pods}
    eventually(lambda: "inline-csi" in denials(alpha, pods), what="the policy in force")

    denied = denials(alpha, [*pods, *(pod_of(name, fields, namespace=loose) for name, fields in ALLOWED.items())])

    assert not denied.keys() & ALLOWED.keys()
    assert {name: denied.get(name) for name in expected if name not in DROPPED} == {
        name: words for name, words in expected.items() if name not in DROPPED
    }
    assert all("clusterTrustBundle" in denied[name] for name in DROPPED)
    alpha.kubectl("delete", "runtimeclass", "kata")


@pytest.fixture
def strict(alpha: Cluster) -> Iterator[TenantPolicy]:
    """Yield a policy of level restricted, enforced in alpha in addition to alpha's own."""
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
    eventually(lambda: not denials(alpha, [pod_manifest("plain")]), what="the policy no longer in force")


def test_level_restricted_is_refused_with_the_same_messages(alpha: Cluster, loose: str, strict: TenantPolicy) -> None:
    of_volumes = "all-but-volumes"
    """Sample whose volume another rule refuses, too. Only one refusal is reported."""
    pods = [pod_of(name, fields, namespace=loose) for name, fields in BY_LEVEL_RESTRICTED.items()]
    eventually(lambda: "plain" in denials(alpha, pods), what="the policy in force")

    denied = denials(alpha, pods)

    expected = {pod["metadata"]["name"]: gateway_message(pod, strict) for pod in pods}
    assert of_volumes in denied
    assert denied | {of_volumes: ""} == expected | {of_volumes: ""}


def deployment_manifest(name: str, labels: dict[str, str] | None = None, **spec: Any) -> dict[str, Any]:
    labels = {"app": name, **(labels or {})}
    template = {"metadata": {"labels": labels}, "spec": pod_manifest(name, **spec)["spec"]}
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"replicas": 1, "selector": {"matchLabels": {"app": name}}, "template": template},
    }


def pods_of(alpha: Cluster, name: str) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = alpha.get("pods", "-l", f"app={name}")["items"]
    return found


def test_controller_of_refused_pods_reports_it_and_creates_none(alpha: Cluster) -> None:
    alpha.apply(deployment_manifest("vaulted", **INLINE))

    def failure_messages() -> list[str]:
        events = alpha.get("events", "--field-selector", "reason=FailedCreate")["items"]
        return [event["message"] for event in events if event["involvedObject"]["name"].startswith("vaulted-")]

    first, *_ = eventually(failure_messages, what="FailedCreate")
    assert "spec.volumes[data].csi: inline CSI volumes are not supported" in first
    assert pods_of(alpha, "vaulted") == []
    alpha.kubectl("delete", "deployment", "vaulted")


def test_gateway_refuses_bypassing_pods_and_restores_the_policy(platform: Platform, alpha: Cluster) -> None:
    def allow_secrets(secrets: list[str]) -> None:
        spec = json.dumps({"spec": {"policy": {"imagePullSecrets": secrets}}})
        platform.compute.kubectl("patch", "tenant", "alpha", "--type=merge", "-p", spec)

    def wait_for_secrets(allowed: str) -> None:
        words = (
            f"spec.imagePullSecrets[b]: image pull secret b is not allowed for this tenant; allowed secrets: {allowed}"
        )
        eventually(lambda: denials(alpha, [private]).get("private") == words, what=f"only {allowed} is allowed")

    private = pod_manifest("private", imagePullSecrets=[{"name": "b"}])
    try:
        # The gateway restores the policy with each change of the tenant's policy and, if none follows, once in a while.
        allow_secrets(["z"])
        wait_for_secrets("z")
        with platform.stopped_gateway():
            alpha.kubectl("delete", POLICY)
            eventually(
                lambda: not denials(alpha, [pod_manifest("inline", **INLINE)]), what="pods let in without the policy"
            )
            alpha.apply(pod_manifest("inline", **INLINE))
        eventually(lambda: alpha.pod_phase("inline") == "Failed", what="the pod failed")
        assert alpha.get("pod", "inline")["status"]["reason"] == "PolicyRefused"

        allow_secrets(["a"])
        wait_for_secrets("a")
    finally:
        allow_secrets(["*"])
        alpha.kubectl("delete", "pod", "inline", "--ignore-not-found", "--wait=false")
    eventually(lambda: not denials(alpha, [private]), what="the old policy in force")


def test_pods_refused_by_the_compute_cluster_back_off(platform: Platform, alpha: Cluster) -> None:
    """Three pods fail immediately, then none for ten seconds, although the controller replaces each immediately."""
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
    probe = pod_manifest("probe")
    probe["metadata"]["labels"] = {"not-here": "yes"}
    eventually(lambda: denials(platform.compute, [probe]), what="the compute cluster's policy in force")
    try:
        alpha.apply(deployment_manifest("misfit", {"not-here": "yes"}))

        ends: dict[str, float] = {}
        reasons: dict[str, str] = {}

        def four_have_failed() -> bool:
            """Note when each pod failed, and why it waited. The gateway removes them some time later."""
            for pod in pods_of(alpha, "misfit"):
                name, status = pod["metadata"]["name"], pod["status"]
                reasons[name] = refusal_message(pod) or reasons.get(name, "")
                if status["phase"] == "Failed":  # its start is its end
                    ends.setdefault(name, datetime.fromisoformat(status["startTime"]).timestamp())
            return len(ends) >= 4

        eventually(four_have_failed, what="four failed pods")
        third, fourth = sorted(ends, key=ends.__getitem__)[2:4]
        assert ends[fourth] - ends[third] >= 9, "ten seconds, of which a started one may be missing"
        assert "not in this cluster" in reasons[fourth]
        assert "fails later" in reasons[fourth]
    finally:
        platform.compute.kubectl("delete", "validatingadmissionpolicy,validatingadmissionpolicybinding", "not-here")
    eventually(lambda: any(pod["status"]["phase"] == "Running" for pod in pods_of(alpha, "misfit")), what="it runs")
    alpha.kubectl("delete", "deployment", "misfit")


def refusal_message(pod: dict[str, Any]) -> str:
    """Return why the compute cluster refuses a pod; empty if it does not."""
    forwarded = find_condition(pod, "vkgateway.io/Forwarded")
    return str(forwarded["message"]) if forwarded.get("reason") == "ForwardingRefused" else ""


def test_global_default_priority_class_is_allowed(alpha: Cluster) -> None:
    priority_class = {
        "apiVersion": "scheduling.k8s.io/v1",
        "kind": "PriorityClass",
        "metadata": {"name": "mine"},
        "value": 100,
        "globalDefault": True,
    }

    def class_of_new_pods() -> str:
        printing = ("--dry-run=server", "-o", "jsonpath={.spec.priorityClassName}")
        return alpha.kubectl("create", *printing, "-f", "-", stdin=json.dumps(pod_manifest("ordinary")))

    alpha.apply(priority_class)
    eventually(lambda: class_of_new_pods() == "mine", what="the class is the default")
    alpha.apply(pod_manifest("ordinary"))
    alpha.wait_pod("ordinary")
    assert alpha.get("pod", "ordinary")["spec"]["priorityClassName"] == "mine"
    alpha.kubectl("delete", "priorityclass", "mine")
    alpha.kubectl("delete", "pod", "ordinary", "--wait=false")
