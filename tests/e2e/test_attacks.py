"""Attacks by a tenant's admin or by another user of the platform's machine, all of which fail."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import re
import ssl
from pathlib import Path
from urllib.error import HTTPError
from urllib.parse import urlsplit
from urllib.request import Request, urlopen

import psutil
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.e2e.cluster import BUSYBOX, Cluster, Document, Platform, eventually, frozen
from tests.e2e.strangers import http_status, unverified_context
from tests.e2e.webhooks import serve_webhook
from tests.support.machine import patience, patience_option
from vkgateway.planes.supervisor import procfs

AUTHORITIES = ("ca.crt", "etcd-ca.crt")
"""Files of a control plane with the certificates of its authorities."""


def test_metrics_and_state_require_authorization(platform: Platform, alpha: Cluster, tmp_path: Path) -> None:
    metrics, health = platform.metrics_url(), platform.health_url()
    for path in ("metrics", "arbiter/state"):
        assert http_status(f"{health}/{path}") == 404
        for token in ("", _create_token(alpha), _create_token(platform.compute)):
            headers = {"Authorization": f"Bearer {token}"} if token else {}
            request = Request(f"{metrics}/{path}", headers=headers)
            assert http_status(request, unverified_context()) in (401, 403)
    assert http_status(f"{health}/healthz") == 200


@pytest.mark.embedded_gateway(reason="the command line reads the gateway in a pod over TLS")
def test_socket_is_private(platform: Platform) -> None:
    assert (platform.data_dir / "run/gateway.sock").stat().st_mode & 0o777 == 0o600


def test_prometheus_and_cli_read_with_a_token(platform: Platform, alpha: Cluster, tmp_path: Path) -> None:
    compute, token = platform.compute, tmp_path / "token"
    token.write_text(_create_token(compute))
    secret = compute.get("secret", "-n", "vkgateway-system", "gateway-authority")
    ca = tmp_path / "ca.crt"
    ca.write_bytes(base64.b64decode(secret["data"]["ca.crt"]))
    for role in ("metrics-reader", "state-reader"):
        binding = ("clusterrolebinding", f"doors-{role}")
        compute.kubectl("create", *binding, f"--clusterrole=vkgateway-{role}", "--serviceaccount=default:default")
    url = platform.metrics_url()
    headers = {"Authorization": f"Bearer {token.read_text()}"}

    def allowed() -> bool:
        """Return whether access is allowed. Refusals are cached for a while."""
        with contextlib.suppress(HTTPError):
            return "vkgateway_tenants" in _fetch_text(
                f"{url}/metrics", headers, ssl.create_default_context(cafile=str(ca))
            )
        return False

    eventually(allowed, what="the token may read metrics")
    line = ("--gateway", url, "--gateway-ca", str(ca), "--gateway-token-file", str(token))
    eventually(lambda: platform.try_vkgateway("top", *line).code == 0, what="the token may read the state")
    assert "alpha" in platform.vkgateway("top")
    for role in ("metrics-reader", "state-reader"):
        compute.kubectl("delete", "clusterrolebinding", f"doors-{role}")


@pytest.mark.embedded_gateway(reason="`vkgateway status` reports processes of the embedded platform")
def test_status_checks_whether_processes_work(platform: Platform, alpha: Cluster) -> None:
    names = ["gateway", "compute/kwok", "compute/hollow-kubelet", "tenant/alpha/apiserver", "renewal"]
    names += ["node/kubelet"] if platform.real else []
    running = platform.processes()
    with frozen(*(running[name]["pid"] for name in names)):
        result = platform.try_vkgateway("status", "-o", "json")
    assert result.code == 5, str(result)
    status = json.loads(result.out)
    assert status["state"] == "degraded"
    assert {process["name"] for process in status["processes"] if process["problem"]} == set(names)
    eventually(lambda: platform.try_vkgateway("status").code == 0, what="all is well again")


def test_status_reports_a_frozen_supervisor(platform: Platform) -> None:
    pid = next(p.pid for p in procfs.list_marked(platform.data_dir.resolve()) if p.name == procfs.SUPERVISOR)
    with frozen(pid):
        result = platform.try_vkgateway("status", "-o", "json")
    assert result.code == 5, str(result)
    assert any("no supervisor answers" in problem for problem in json.loads(result.out)["problems"])


@pytest.mark.embedded_gateway(reason="API servers in pods have NetworkPolicies, which other tests check")
def test_webhook_by_url_reaches_no_server_of_the_machine(platform: Platform, alpha: Cluster) -> None:
    received: list[str] = []

    def review(request: Document) -> str:
        received.append(request["name"])
        return ""

    with serve_webhook("127.0.0.2", review) as client_config:
        hook = {
            "name": "intrudes.example.org",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "clientConfig": client_config,
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            ],
            "namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": "default"}},
        }
        kind, api = "ValidatingWebhookConfiguration", "admissionregistration.k8s.io/v1"
        alpha.apply({"apiVersion": api, "kind": kind, "metadata": {"name": "intrudes"}, "webhooks": [hook]})
        try:
            creation = ("create", "configmap", "intrudes", "--dry-run=server")
            host = urlsplit(client_config["url"]).netloc

            def refusal() -> str:
                """Return the error, unless the API server has waited too long for an answer."""
                error = alpha.try_kubectl(*creation).err
                return error if f"dialing {host}, code 403" in error else ""

            assert "controlPlanes.webhookRanges" in eventually(refusal, what="the refused call of the webhook")

            def is_logged() -> bool:
                lines = platform.vkgateway("logs", "gateway").splitlines()
                return any("connection of an API server refused" in line and host in line for line in lines)

            eventually(is_logged, what="a line in the gateway's log")
            assert received == []
        finally:
            alpha.kubectl("delete", kind, "intrudes")


def _create_token(cluster: Cluster) -> str:
    return cluster.kubectl("create", "token", "default", "--duration=10m").strip()


def _fetch_text(url: str, headers: dict[str, str], context: ssl.SSLContext) -> str:
    with urlopen(Request(url, headers=headers), context=context, timeout=patience(10)) as response:
        text: str = response.read().decode()
    return text


def test_webhooks_reach_no_platform_server(platform: Platform, alpha: Cluster, beta: Cluster) -> None:
    """Even with the right CA, each server of the platform requires a certificate or a token."""
    doors = _list_servers(platform, alpha, beta)
    hooks = [
        {
            "name": f"door-{port}.example.com",
            "admissionReviewVersions": ["v1"],
            "sideEffects": "None",
            "timeoutSeconds": 5,
            "clientConfig": {"url": f"https://{host}:{port}/arbiter/state", "caBundle": _all_authorities(platform)},
            "objectSelector": {"matchLabels": {"door": str(port)}},
            "rules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["configmaps"]}
            ],
        }
        for port, host in doors.items()
    ]
    kind = {"apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingWebhookConfiguration"}
    alpha.apply({**kind, "metadata": {"name": "doors"}, "webhooks": hooks})
    try:
        eventually(lambda: "failed calling webhook" in _webhook_errors(alpha, *doors), what="webhooks are called")
        refusals = [line for line in _webhook_errors(alpha, *doors).splitlines() if "failed calling webhook" in line]
        assert len(refusals) == len(doors), refusals
        assert not re.search("vkgateway_|guarantee", "".join(refusals)), refusals
    finally:
        alpha.kubectl("delete", "validatingwebhookconfiguration", "doors")


def _webhook_errors(alpha: Cluster, *ports: int) -> str:
    """Return the errors for ConfigMaps that each call one webhook."""
    maps = [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": f"door-{port}", "labels": {"door": str(port)}}}
        for port in ports
    ]
    result = alpha.try_kubectl(
        "create", "--dry-run=server", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": maps})
    )
    return result.err


def test_api_services_reach_no_platform_server(platform: Platform, alpha: Cluster, beta: Cluster) -> None:
    """An APIService through an ExternalName, with paths that lead elsewhere, reveals neither platform nor neighbour."""
    doors = _list_servers(platform, alpha, beta)
    for port, host in doors.items():
        alpha.apply(
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": f"door-{port}"},
                "spec": {
                    "type": "ExternalName",
                    "externalName": host.replace("127.0.0.1", "localhost"),
                    "ports": [{"port": port}],
                },
            },
            {
                "apiVersion": "apiregistration.k8s.io/v1",
                "kind": "APIService",
                "metadata": {"name": f"v1.door{port}.example.com"},
                "spec": {
                    "group": f"door{port}.example.com",
                    "version": "v1",
                    "groupPriorityMinimum": 100,
                    "versionPriority": 100,
                    "insecureSkipTLSVerify": True,
                    "service": {"name": f"door-{port}", "namespace": "default", "port": port},
                },
            },
        )
    server = json.loads(alpha.kubectl("config", "view", "--raw", "-o", "json"))["clusters"][0]["cluster"]["server"]
    token = _admin_token(alpha)
    try:
        eventually(lambda: len(_tried_services(alpha)) == len(doors), what="the API server has tried each server")
        for port in doors:
            base = f"/apis/door{port}.example.com/v1"
            for path in ("/x", "/../../../metrics", "/%2e%2e/%2e%2e/%2e%2e/arbiter/state", "/..%2f..%2f..%2fmetrics"):
                status, body = _request_raw(server, f"{base}{path}", token)
                assert status != 200 or b"vkgateway_" not in body, (port, path)
                refused = status in (301, 401, 403, 404, 413, 503)
                assert refused or b"aggregator_" in body, (port, path, status, body[:200])
    finally:
        alpha.kubectl("delete", "apiservice", *(f"v1.door{port}.example.com" for port in doors))
        alpha.kubectl("delete", "service", *(f"door-{port}" for port in doors))


def _tried_services(cluster: Cluster) -> list[str]:
    """Return the APIServices that lead elsewhere and are available or not. Before that, no request reaches a server."""
    return [
        service["metadata"]["name"]
        for service in cluster.get("apiservices")["items"]
        if ".door" in service["metadata"]["name"] and service.get("status", {}).get("conditions")
    ]


def test_tenant_signed_certificates_are_invalid_elsewhere(
    platform: Platform, alpha: Cluster, beta: Cluster, tmp_path: Path
) -> None:
    for user in ("vkgateway:tenant:beta", "root", "kube-apiserver-kubelet-client"):
        identity = _sign_certificate(alpha, user, folder=tmp_path)
        context = unverified_context()
        context.load_cert_chain(identity)
        for port, host in _list_servers(platform, beta).items():
            for path in ("/api/v1/secrets", "/pods", "/metrics", "/containerLogs/alpha--default/hollow/main"):
                url = f"https://{host}:{port}{path}"
                status = http_status(url, context)
                # The page tells everybody that it has no such path.
                unknown = status == 404 == http_status(url, unverified_context())
                assert unknown or status in (0, 401, 403), (user, port, path, status)


@pytest.mark.usefixtures("real")
def test_memory_volumes_leave_memory_for_the_platform(platform: Platform, alpha: Cluster) -> None:
    """Whatever their size, all pods together may use four fifths of the machine's memory."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "memory"},
        "spec": {
            "nodeSelector": {"kubernetes.io/hostname": "real.local"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "containers": [
                {
                    "name": "main",
                    "image": BUSYBOX,
                    "command": ["sleep", "600"],
                    "volumeMounts": [{"name": "memory", "mountPath": "/memory"}],
                }
            ],
            "volumes": [{"name": "memory", "emptyDir": {"medium": "Memory", "sizeLimit": "1Pi"}}],
        },
    }
    alpha.apply(pod)
    alpha.kubectl("wait", "--for=condition=Ready", "pod/memory", patience_option(60))
    size = int(alpha.kubectl("exec", "memory", "--", "df", "-k", "/memory").splitlines()[-1].split()[1]) * 1024
    assert size <= psutil.virtual_memory().total * 4 // 5
    limit = int(_memory_limit(platform).read_text())
    assert 0 < limit <= psutil.virtual_memory().total * 4 // 5
    alpha.kubectl("delete", "pod", "memory")


def _memory_limit(platform: Platform) -> Path:
    """Return the kernel's file for the memory of all pods of the platform's real node."""
    group = f"vkg*-{hashlib.sha256(str(platform.data_dir / 'node').encode()).hexdigest()[:8]}"
    root = Path("/sys/fs/cgroup")
    [found] = [*root.glob(f"memory/{group}/memory.limit_in_bytes"), *root.glob(f"{group}/memory.max")]
    return found


def _list_servers(platform: Platform, *tenants: Cluster) -> dict[int, str]:
    """Return the ports of the platform's servers and of the tenants' API servers, with the address of each."""
    found = platform.gateway_servers()
    for tenant in tenants:
        server = urlsplit(tenant.kubectl("config", "view", "-o", "jsonpath={.clusters[0].cluster.server}"))
        assert server.hostname is not None
        assert server.port is not None
        found[server.port] = server.hostname
    return found


def _all_authorities(platform: Platform) -> str:
    """Return every CA of the platform, which a tenant may know, as a `caBundle`."""
    secret = platform.compute.get("secret", "-n", "vkgateway-system", "gateway-authority")
    files = (platform.data_dir / "pki/etcd-ca.crt", platform.data_dir / "pki/compute/ca.crt")
    tenants = [platform.control_plane_file(tenant, name) for tenant in ("alpha", "beta") for name in AUTHORITIES]
    pems = [*(file.read_bytes() for file in files), *tenants, base64.b64decode(secret["data"]["ca.crt"])]
    return base64.b64encode(b"\n".join(pems)).decode()


def _admin_token(cluster: Cluster) -> str:
    cluster.kubectl("create", "serviceaccount", "doors")
    binding = ("clusterrolebinding", "doors", "--clusterrole=cluster-admin", "--serviceaccount=default:doors")
    cluster.kubectl("create", *binding)
    return cluster.kubectl("create", "token", "doors", "--duration=10m").strip()


def _request_raw(server: str, path: str, token: str) -> tuple[int, bytes]:
    """Request a path verbatim."""
    place = urlsplit(server)
    assert place.hostname is not None
    connection = http.client.HTTPSConnection(
        place.hostname, place.port, context=unverified_context(), timeout=patience(20)
    )
    try:
        connection.request("GET", path, headers={"Authorization": f"Bearer {token}"})
        response = connection.getresponse()
        return response.status, response.read()
    finally:
        connection.close()


def _sign_certificate(cluster: Cluster, user: str, *, folder: Path) -> Path:
    """Return a certificate for `user` and its key, signed by a tenant's CA."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, user)])
    csr = x509.CertificateSigningRequestBuilder().subject_name(name).sign(key, hashes.SHA256())
    cluster.apply(
        {
            "apiVersion": "certificates.k8s.io/v1",
            "kind": "CertificateSigningRequest",
            "metadata": {"name": "forged"},
            "spec": {
                "request": base64.b64encode(csr.public_bytes(serialization.Encoding.PEM)).decode(),
                "signerName": "kubernetes.io/kube-apiserver-client",
                "usages": ["client auth"],
            },
        }
    )
    cluster.kubectl("certificate", "approve", "forged")
    signed = eventually(lambda: cluster.get("csr", "forged")["status"].get("certificate"), what="it is signed")
    cluster.kubectl("delete", "csr", "forged")
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    path = folder / "forged.pem"
    path.write_bytes(base64.b64decode(signed) + pem)
    return path
