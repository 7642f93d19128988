"""Tenant admins: CRDs, webhooks, RBAC and quota of one tenant, next to a neighbour with others."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterator
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Document, Platform, eventually, pod_manifest
from tests.e2e.webhooks import serve_webhook
from tests.support.machine import patience_option

CRD: dict[str, Any] = {
    "apiVersion": "apiextensions.k8s.io/v1",
    "kind": "CustomResourceDefinition",
    "metadata": {"name": "trainings.example.org"},
    "spec": {
        "group": "example.org",
        "scope": "Namespaced",
        "names": {"kind": "Training", "plural": "trainings", "singular": "training"},
        "versions": [
            {
                "name": "v1",
                "served": True,
                "storage": True,
                "schema": {
                    "openAPIV3Schema": {
                        "type": "object",
                        "properties": {
                            "spec": {"type": "object", "properties": {"gpus": {"type": "integer", "minimum": 1}}}
                        },
                    }
                },
            }
        ],
    },
}


def refuse_forbidden(request: Document) -> str:
    """Refuse every pod labelled `forbidden`."""
    labels = request["object"]["metadata"].get("labels") or {}
    return "not on my watch" if "forbidden" in labels else ""


@pytest.fixture
def webhook(platform: Platform) -> Iterator[Document]:
    """Yield the `clientConfig` of a webhook on this machine."""
    with serve_webhook(platform.host_address, refuse_forbidden) as client_config:
        yield client_config


def test_crd_exists_in_its_tenant_only(alpha: Cluster, beta: Cluster) -> None:
    alpha.apply_crds(CRD)
    alpha.apply({"apiVersion": "example.org/v1", "kind": "Training", "metadata": {"name": "t"}, "spec": {"gpus": 8}})

    assert alpha.get("training", "t")["spec"]["gpus"] == 8
    assert beta.try_kubectl("get", "trainings").code != 0
    alpha.kubectl("delete", "crd", "trainings.example.org")


def test_tenant_webhook_is_enforced(alpha: Cluster, beta: Cluster, webhook: Document) -> None:
    alpha.apply(
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "refuses"},
            "webhooks": [
                {
                    "name": "refuses.example.org",
                    "admissionReviewVersions": ["v1"],
                    "sideEffects": "None",
                    "clientConfig": webhook,
                    "rules": [
                        {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
                    ],
                    "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
                }
            ],
        }
    )
    forbidden = pod_manifest("watched")
    forbidden["metadata"]["labels"] = {"forbidden": "yes"}
    document = json.dumps(forbidden)

    def refused() -> bool:
        result = alpha.try_kubectl("apply", "-f", "-", stdin=document)
        if result.code == 0:
            alpha.kubectl("delete", "pod", "watched", "--wait")
        return "not on my watch" in result.err

    try:
        eventually(refused, what="the webhook's refusal")
        assert beta.try_kubectl("apply", "-f", "-", stdin=document).code == 0
    finally:
        alpha.kubectl("delete", "validatingwebhookconfiguration", "refuses")
        beta.kubectl("delete", "pod", "watched", "--ignore-not-found", "--wait")


def test_admin_has_all_rights_in_the_tenant_cluster(alpha: Cluster) -> None:
    assert alpha.kubectl("auth", "can-i", "*", "*", "--all-namespaces").strip() == "yes"
    alpha.kubectl("create", "serviceaccount", "robot")
    alpha.kubectl("create", "clusterrole", "looks", "--verb=get,list", "--resource=pods")
    alpha.kubectl(
        "create", "clusterrolebinding", "robot-looks", "--clusterrole=looks", "--serviceaccount=default:robot"
    )
    robot = ("--as", "system:serviceaccount:default:robot")
    eventually(lambda: alpha.try_kubectl(*robot, "get", "pods").code == 0, what="the binding takes effect")
    assert "forbidden" in alpha.try_kubectl(*robot, "get", "secrets").err


def test_deleted_virtual_node_is_re_created(alpha: Cluster) -> None:
    before = alpha.get("node", "v100.local")["metadata"]["uid"]
    alpha.kubectl("delete", "node", "v100.local")
    eventually(
        lambda: (alpha.find("node", "v100.local") or {}).get("metadata", {}).get("uid") not in (None, before),
        what="the node back",
    )
    alpha.kubectl("wait", "node/v100.local", "--for=condition=Ready", patience_option(30))


def test_watch_and_description_show_a_pods_lifecycle(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("seen"))
    alpha.wait_pod("seen")
    assigned = "Successfully assigned default/seen"
    eventually(lambda: assigned in alpha.kubectl("describe", "pod", "seen"), what="the scheduler's event")
    command = (*alpha.kubectl_command, "get", "pod", "seen", "--watch", "--output-watch-events", "--no-headers")
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as watch:
        assert watch.stdout is not None
        try:
            assert watch.stdout.readline().split()[0] == "ADDED"
            alpha.kubectl("delete", "pod", "seen", "--wait")
            assert any(line.startswith("DELETED") for line in watch.stdout)
        finally:
            watch.kill()
