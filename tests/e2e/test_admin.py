"""Tenant admins: CRDs, webhooks, RBAC and quota of one tenant, next to a neighbour with others."""

from __future__ import annotations

import base64
import json
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, Platform, eventually, pod_manifest
from vkgateway.controlplane.pki import Authority

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


class Refuses(BaseHTTPRequestHandler):
    """Validating webhook that refuses every pod labelled `forbidden`."""

    def do_POST(self) -> None:
        review = json.loads(self.rfile.read(int(self.headers["Content-Length"])))["request"]
        labels = review["object"]["metadata"].get("labels") or {}
        response = {
            "uid": review["uid"],
            "allowed": "forbidden" not in labels,
            "status": {"message": "not on my watch"},
        }
        body = json.dumps(
            {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
        ).encode()
        self.send_response(200)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *args: object) -> None:
        """Log nothing."""


@pytest.fixture
def webhook(platform: Platform, tmp_path: Path) -> Iterator[tuple[str, str]]:
    """Yield the URL of a webhook on this machine and its CA certificate in base64."""
    address = platform.host_address
    authority = Authority.create("webhook test")
    pair = authority.issue("localhost", dns=("localhost",), ips=(address,), server=True)
    cert, key = tmp_path / "cert.pem", tmp_path / "key.pem"
    cert.write_bytes(pair.cert_pem)
    key.write_bytes(pair.key_pem)
    server = HTTPServer((address, 0), Refuses)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(cert, key)
    server.socket = context.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"https://{address}:{server.server_port}/", base64.b64encode(authority.cert_pem).decode()
    finally:
        server.shutdown()
        thread.join()
        server.server_close()


def test_crd_exists_in_its_tenant_only(alpha: Cluster, beta: Cluster) -> None:
    alpha.apply_crds(CRD)
    alpha.apply({"apiVersion": "example.org/v1", "kind": "Training", "metadata": {"name": "t"}, "spec": {"gpus": 8}})

    assert alpha.get("training", "t")["spec"]["gpus"] == 8
    assert beta.try_kubectl("get", "trainings").code != 0
    alpha.kubectl("delete", "crd", "trainings.example.org")


def test_tenant_webhook_is_enforced(alpha: Cluster, beta: Cluster, webhook: tuple[str, str]) -> None:
    url, authority = webhook
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
                    "clientConfig": {"url": url, "caBundle": authority},
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
    assert alpha.try_kubectl(*robot, "get", "pods").code == 0
    assert "forbidden" in alpha.try_kubectl(*robot, "get", "secrets").err


def test_deleted_virtual_node_is_re_created(alpha: Cluster) -> None:
    before = alpha.get("node", "v100.local")["metadata"]["uid"]
    alpha.kubectl("delete", "node", "v100.local")
    eventually(
        lambda: (alpha.find("node", "v100.local") or {}).get("metadata", {}).get("uid") not in (None, before),
        what="the node back",
    )
    alpha.kubectl("wait", "node/v100.local", "--for=condition=Ready", "--timeout=30s")


def test_watch_shows_a_pods_lifecycle(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("seen"))
    alpha.wait_pod("seen")
    watched = alpha.kubectl("get", "pod", "seen", "-w", "--request-timeout=2s", "-o", "name")
    assert "pod/seen" in watched
    described = alpha.kubectl("describe", "pod", "seen")
    assert "Scheduled" in described
    alpha.kubectl("delete", "pod", "seen", "--wait")
