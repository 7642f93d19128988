"""Tenants from the command line and kubectl: creation, access, refusal, removal, isolation."""

from __future__ import annotations

import json
import ssl
import stat
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.e2e.cluster import BUSYBOX, TENANT_VERSION, Cluster, Platform, eventually, pod_manifest, run_program
from tests.support.machine import patience, patience_option

GONE_WITHIN = 120.0


def tenant_manifest(name: str, **spec: object) -> dict[str, object]:
    return {"apiVersion": "vkgateway.io/v1alpha1", "kind": "Tenant", "metadata": {"name": name}, "spec": spec}


@pytest.fixture(scope="module")
def leaver(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant applied with kubectl, which a test may delete."""
    version = {"kubernetesVersion": TENANT_VERSION} if TENANT_VERSION else {}
    pools = [{"name": "a100", "guarantee": {"nvidia.com/gpu": "2"}}]
    platform.compute.apply(tenant_manifest("leaver", pools=pools, **version))
    # As long as `tenant create` may take: three programs start.
    platform.compute.kubectl("wait", "tenant/leaver", "--for=condition=Ready", patience_option(120), timeout=130)
    yield platform.tenant("leaver")
    if platform.compute.find("tenant", "leaver") is not None:
        platform.vkgateway("tenant", "delete", "leaver", "--yes")


def test_tenant_applied_with_kubectl_equals_one_of_the_command_line(platform: Platform, leaver: Cluster) -> None:
    platform.vkgateway("tenant", "create", "typed", "--pool", "a100:guarantee=nvidia.com/gpu=2")
    fresh = platform.tenant("typed")
    fresh.kubectl("create", "-f", "-", stdin=json.dumps(pod_manifest("at-once")))

    fresh.wait_pod("at-once")
    applied, typed = (platform.compute.get("tenant", name)["spec"] for name in ("leaver", "typed"))
    assert applied == typed
    assert leaver.get("node", "a100.zone-0.local")["status"]["conditions"]
    platform.vkgateway("tenant", "delete", "typed", "--yes")


def test_deleted_tenant_is_restored_with_its_data(platform: Platform, leaver: Cluster) -> None:
    leaver.kubectl("create", "configmap", "notes", "--from-literal=text=kept")
    leaver.kubectl("create", "deployment", "web", f"--image={BUSYBOX}", "--", "sleep", "3600")
    leaver.kubectl("rollout", "status", "deployment/web", patience_option(60), timeout=130)
    platform.publish_api_server("leaver")
    kubeconfig = platform.vkgateway("tenant", "kubeconfig", "leaver")
    platform.vkgateway("tenant", "delete", "leaver", "--keep", "1h", "--yes", timeout=GONE_WITHIN)

    assert not platform.runs_control_plane("leaver")
    assert platform.compute.get("pods", "-n", "leaver--default")["items"] == []
    refused = platform.try_vkgateway("tenant", "create", "leaver", "--pool", "a100")
    assert refused.code == 4, str(refused)
    assert "vkgateway tenant restore leaver" in refused.err

    platform.kill_gateway()
    platform.vkgateway("tenant", "restore", "leaver", timeout=GONE_WITHIN)
    shown = ("tenant", "kubeconfig", "leaver")
    eventually(lambda: platform.vkgateway(*shown) == kubeconfig, what="the same address, CA and user")
    eventually(lambda: leaver.try_kubectl("get", "namespaces").code == 0, what="the former kubeconfig works")
    assert leaver.get("configmap", "notes")["data"] == {"text": "kept"}
    assert leaver.kubectl("rollout", "status", "deployment/web", patience_option(60), timeout=130)
    leaver.kubectl("delete", "deployment/web", "configmap/notes")


def test_protected_tenant_is_deleted_only_after_its_protection_was_removed(platform: Platform) -> None:
    platform.vkgateway("tenant", "create", "kept", "--pool", "a100", "--deletion-protection", "--no-wait")
    refused = platform.compute.try_kubectl("delete", "tenant", "kept", "--wait=false")
    assert refused.code != 0
    assert "vkgateway tenant set kept --no-deletion-protection" in refused.err
    assert platform.try_vkgateway("tenant", "delete", "kept", "--yes").code == 4
    assert "deletionTimestamp" not in platform.compute.get("tenant", "kept")["metadata"]

    platform.vkgateway("tenant", "set", "kept", "--no-deletion-protection", "--pool", "a100:weight=2", "--no-wait")
    assert platform.compute.get("tenant", "kept")["spec"]["pools"][0]["weight"] == 2
    platform.vkgateway("tenant", "delete", "kept", "--yes", timeout=GONE_WITHIN)


def test_deleted_tenant_leaves_nothing_and_others_are_untouched(
    platform: Platform, alpha: Cluster, leaver: Cluster
) -> None:
    leaver.apply(pod_manifest("left"))
    alpha.apply(pod_manifest("stays"))
    leaver.wait_pod("left")
    alpha.wait_pod("stays")
    uid = alpha.get("pod", "stays")["metadata"]["uid"]

    platform.vkgateway("tenant", "delete", "leaver", "--yes", timeout=GONE_WITHIN)

    assert platform.compute.find("tenant", "leaver") is None
    assert platform.compute.find("secret", "tenant-leaver", "-n", "vkgateway-system") is None
    assert "leaver" not in platform.compute.kubectl("get", "namespaces", "-o", "name")
    assert not platform.has_control_plane("leaver")
    assert alpha.get("pod", "stays")["metadata"]["uid"] == uid
    assert platform.compute.get("pod", "stays", "-n", "alpha--default")["status"]["phase"] == "Running"
    alpha.kubectl("delete", "pod", "stays", "--wait")


BAD = [
    pytest.param(["Team"], 2, "capital", id="capitals"),
    pytest.param(["a--b"], 2, "--", id="two dashes"),
    pytest.param(["a" * 33], 2, "33", id="too long"),
    pytest.param(["ok", "--pool", "h100"], 2, "h100", id="unknown pool"),
    pytest.param(["ok", "--pool", "a100:guarantee=nvidia.com/gpu=99"], 2, "99", id="guarantee beyond the pool"),
    pytest.param(["ok", "--pool", "a100:guarantee=nvidia.com/gpu=many"], 2, "many", id="no quantity"),
    pytest.param(["ok", "--template", "nope"], 2, "nope", id="unknown template"),
    pytest.param(["ok", "--kubernetes-version", "1.12.0"], 2, "1.12.0", id="version too old"),
]


@pytest.mark.parametrize(("arguments", "code", "names"), BAD)
def test_invalid_input_is_refused_and_leaves_nothing(
    platform: Platform, arguments: list[str], code: int, names: str
) -> None:
    result = platform.try_vkgateway("tenant", "create", *arguments)

    assert result.code == code, str(result)
    assert names in result.err
    assert "Traceback" not in result.err
    assert platform.compute.find("tenant", arguments[0].lower()) is None


def test_existing_name_is_a_conflict(platform: Platform, alpha: Cluster) -> None:
    assert alpha
    result = platform.try_vkgateway("tenant", "create", "alpha", "--pool", "a100")

    assert result.code == 4, str(result)
    assert "alpha" in result.err


def test_invalid_tenant_applied_with_kubectl_reports_why(platform: Platform) -> None:
    refused = platform.compute.try_kubectl("apply", "-f", "-", stdin=json.dumps(tenant_manifest("a--b")))
    assert refused.code != 0
    assert "--" in refused.err

    platform.compute.apply(tenant_manifest("greedy", pools=[{"name": "a100", "guarantee": {"nvidia.com/gpu": "99"}}]))
    found = eventually(
        lambda: [
            entry
            for entry in (platform.compute.get("tenant", "greedy").get("status") or {}).get("conditions", [])
            if entry["type"] == "Accepted" and entry["status"] == "False"
        ],
        what="a condition that refuses it",
    )
    assert "99" in found[0]["message"]
    assert not platform.has_control_plane("greedy")
    platform.compute.kubectl("delete", "tenant", "greedy", patience_option(60), timeout=70)


def test_kubeconfig_is_private_and_merges(platform: Platform, alpha: Cluster, tmp_path: Path) -> None:
    assert alpha
    path = tmp_path / "config"
    platform.vkgateway("tenant", "kubeconfig", "alpha", "-f", str(path))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600

    merged = tmp_path / "merged"
    merged.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "mine",
                "clusters": [{"name": "mine", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "mine", "user": {}}],
                "contexts": [{"name": "mine", "context": {"cluster": "mine", "user": "mine"}}],
            }
        )
    )
    platform.vkgateway("tenant", "kubeconfig", "alpha", "--merge", "-f", str(merged))
    contexts = Cluster(platform.kubectl_path, merged).kubectl("config", "get-contexts", "-o", "name").split()
    assert "mine" in contexts
    assert len(contexts) == 2


def test_dangling_kubeconfig_gives_one_sentence(platform: Platform, tmp_path: Path) -> None:
    path = tmp_path / "nowhere"
    path.write_text(
        json.dumps(
            {
                "apiVersion": "v1",
                "kind": "Config",
                "current-context": "x",
                "clusters": [{"name": "x", "cluster": {"server": "https://127.0.0.1:1"}}],
                "users": [{"name": "x", "user": {}}],
                "contexts": [{"name": "x", "context": {"cluster": "x", "user": "x"}}],
            }
        )
    )
    result = platform.try_vkgateway("tenant", "list", "--kubeconfig", str(path))

    assert result.code == 5, str(result)
    assert "127.0.0.1:1" in result.err
    assert "Traceback" not in result.err


@pytest.mark.parametrize("form", ["json", "yaml", "name"])
def test_lists_are_machine_readable(platform: Platform, alpha: Cluster, form: str) -> None:
    assert alpha
    printed = platform.vkgateway("tenant", "list", "-o", form)

    assert "alpha" in printed
    assert platform.vkgateway("compute", "list", "-o", form)


# One tenant's credentials, tried on another.


def test_tenant_certificate_opens_no_other_tenants_api(alpha: Cluster, beta: Cluster) -> None:
    server = beta.kubectl("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}")
    result = alpha.try_kubectl("--server", server, "--insecure-skip-tls-verify", "get", "pods")

    assert result.code != 0


def test_tenant_certificate_opens_no_compute_api(platform: Platform, alpha: Cluster) -> None:
    server = platform.compute.kubectl("config", "view", "--raw", "-o", "jsonpath={.clusters[0].cluster.server}")
    result = alpha.try_kubectl("--server", server, "--insecure-skip-tls-verify", "get", "pods", "-A")

    assert result.code != 0


def kubelet_request(platform: Platform, as_tenant: str, path: str, *, folder: Path) -> int:
    """Call the kubelet endpoint with a tenant's kubelet client certificate, and return the HTTP status."""
    node = platform.tenant(as_tenant).get("node", "a100.zone-0.local")["status"]
    host = next(entry["address"] for entry in node["addresses"] if entry["type"] == "InternalIP")
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    names = ("kubelet-client.crt", "kubelet-client.key")
    certificate, key = write_files(platform, as_tenant, *names, folder=folder)
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE
    context.load_cert_chain(certificate, key)
    try:
        with urllib.request.urlopen(f"https://{host}:{port}{path}", context=context, timeout=patience(10)) as response:
            return int(response.status)
    except urllib.error.HTTPError as error:
        return error.code


def write_files(platform: Platform, tenant: str, *names: str, folder: Path) -> list[Path]:
    """Copy files of a tenant's control plane into a directory; return their paths."""
    paths = [folder / f"{tenant}-{name}" for name in names]
    for path, name in zip(paths, names, strict=True):
        path.write_bytes(platform.control_plane_file(tenant, name))
    return paths


def test_kubelet_certificate_reaches_only_the_tenants_pods(
    platform: Platform, alpha: Cluster, beta: Cluster, tmp_path: Path
) -> None:
    assert beta
    alpha.apply(pod_manifest("secretive"))
    alpha.wait_pod("secretive")

    pod, compute_pod = "/containerLogs/default/secretive/main", "/containerLogs/alpha--default/secretive/main"
    assert kubelet_request(platform, "alpha", pod, folder=tmp_path) == 200
    assert kubelet_request(platform, "beta", pod, folder=tmp_path) >= 400
    assert kubelet_request(platform, "beta", compute_pod, folder=tmp_path) >= 400
    alpha.kubectl("delete", "pod", "secretive", "--wait")


def test_kubelet_endpoint_requires_a_certificate(platform: Platform, alpha: Cluster) -> None:
    node = alpha.get("node", "a100.zone-0.local")["status"]
    host = next(entry["address"] for entry in node["addresses"] if entry["type"] == "InternalIP")
    port = node["daemonEndpoints"]["kubeletEndpoint"]["Port"]
    context = ssl.create_default_context()
    context.check_hostname = False
    context.verify_mode = ssl.CERT_NONE

    with pytest.raises((urllib.error.URLError, ssl.SSLError, ConnectionError)):
        urllib.request.urlopen(f"https://{host}:{port}/pods", context=context, timeout=patience(10))
    assert platform


def test_etcd_user_reads_only_its_tenants_keys(
    platform: Platform, alpha: Cluster, beta: Cluster, tmp_path: Path
) -> None:
    assert alpha
    assert beta
    etcdctl = platform.vkgateway("binaries", "path", "etcdctl").strip()
    ca, cert, key = write_files(platform, "alpha", "etcd-ca.crt", "etcd.crt", "etcd.key", folder=tmp_path)

    def list_keys(prefix: str, url: str) -> str:
        result = run_program(
            etcdctl,
            f"--endpoints={url}",
            f"--dial-timeout={patience(10):.0f}s",
            f"--command-timeout={patience(20):.0f}s",
            f"--cacert={ca}",
            f"--cert={cert}",
            f"--key={key}",
            "get",
            "--keys-only",
            "--prefix",
            prefix,
        )
        return result.out + result.err

    with platform.open_etcd() as url:
        assert "/tenants/alpha/" in list_keys("/tenants/alpha/", url)
        for foreign_prefix in ("/tenants/beta/", "/compute/", "/"):
            assert "permission denied" in list_keys(foreign_prefix, url)
