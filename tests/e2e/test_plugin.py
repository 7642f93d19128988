"""The kubectl plugin, run by kubectl: as platform ops, as a tenant's admin, and as a user with few rights."""

from __future__ import annotations

import io
import json
import os
import socket
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.cluster import Cluster, CommandResult, Document, Platform, eventually, pod_manifest, run_program
from tests.support.machine import patience_option

CANARY = "c4n4ry"
V100: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "v100"}}
RESEARCH = "research"


class Plugin:
    """`kubectl vkgateway` with a kubeconfig, found through PATH."""

    def __init__(self, platform: Platform, programs: Path, kubeconfig: Path) -> None:
        self._kubectl = platform.kubectl_path
        self.environment = {
            "PATH": f"{programs}:{os.environ['PATH']}",
            "KUBECONFIG": str(kubeconfig),
            "VKGATEWAY_DATA_DIR": str(platform.data_dir),
        }

    def run(self, *args: str) -> CommandResult:
        """Run a command, and return its answer even if it fails."""
        return run_program(self._kubectl, *args, env=self.environment)

    def __call__(self, *args: str) -> str:
        """Run a command of the plugin, which must succeed."""
        result = self.run("vkgateway", *args)
        assert result.code == 0, f"{args}: {result}"
        return result.out

    def data(self, *args: str) -> Any:
        """Run a command of the plugin, and return its JSON."""
        return json.loads(self(*args, "-o", "json"))

    def bundle(self, file: Path, *args: str) -> dict[str, str]:
        """Write a support bundle, and return its files."""
        self("report", "-o", str(file), *args)
        with tarfile.open(fileobj=io.BytesIO(file.read_bytes())) as archive:
            found = ((member.name, archive.extractfile(member)) for member in archive.getmembers())
            return {name.partition("/")[2]: file.read().decode() for name, file in found if file is not None}


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a folder with the two programs of the package that kubectl runs."""
    folder = tmp_path_factory.mktemp("programs")
    modules = {"kubectl-vkgateway": "plugin.main", "kubectl_complete-vkgateway": "plugin.completion"}
    for name, module in modules.items():
        code = f"from vkgateway.cli.{module} import main; main()"
        (folder / name).write_text(f"#!/bin/sh\nexec '{sys.executable}' -c '{code}' \"$@\"\n")
        (folder / name).chmod(0o755)
    return folder


@pytest.fixture(scope="module")
def plugged(platform: Platform) -> Iterator[Cluster]:
    """Yield a tenant with a limit of 8 GPUs, of which a running pod uses all, and a waiting pod."""
    platform.vkgateway("tenant", "create", "plugged", "--pool", "v100:limit=nvidia.com/gpu=8")
    cluster = platform.tenant("plugged")
    cluster.create_namespace(RESEARCH)
    cluster.apply(gpu_pod("holds"))
    cluster.kubectl("wait", "pod/holds", "-n", RESEARCH, "--for=condition=Ready", patience_option(60), timeout=70)
    cluster.apply(gpu_pod("train-0"))
    yield cluster
    platform.vkgateway("tenant", "delete", "plugged", "--yes")


def gpu_pod(name: str) -> Document:
    """Return a pod of 8 GPUs with canaries where secrets hide."""
    container = {
        "resources": {"limits": {"nvidia.com/gpu": "8"}},
        "env": [{"name": "TOKEN", "value": f"{CANARY}-environment"}],
        "args": [f"{CANARY}-argument"],
    }
    made = pod_manifest(name, container=container, command=f"sleep 3600 # {CANARY}-command", **V100)
    made["metadata"] |= {"namespace": RESEARCH, "annotations": {"example.com/key": f"{CANARY}-annotation"}}
    return made


@pytest.fixture(scope="module")
def admin(platform: Platform, plugged: Cluster, programs: Path) -> Plugin:
    return Plugin(platform, programs, plugged.kubeconfig)


@pytest.fixture(scope="module")
def ops(platform: Platform, plugged: Cluster, programs: Path) -> Plugin:
    return Plugin(platform, programs, platform.compute.kubeconfig)


@pytest.fixture(scope="module")
def reader(platform: Platform, plugged: Cluster, programs: Path, tmp_path_factory: pytest.TempPathFactory) -> Plugin:
    """Return the plugin of a user who may only read pods of one namespace."""
    plugged.kubectl("create", "serviceaccount", "reader", "-n", RESEARCH)
    plugged.kubectl("create", "role", "reader", "--verb=get,list", "--resource=pods", "-n", RESEARCH)
    binding = ("rolebinding", "reader", "--role=reader", f"--serviceaccount={RESEARCH}:reader")
    plugged.kubectl("create", *binding, "-n", RESEARCH)
    token = plugged.kubectl("create", "token", "reader", "-n", RESEARCH).strip()
    cluster = plugged.with_token(token, tmp_path_factory.mktemp("reader"))
    cluster.kubectl("config", "set-context", "--current", f"--namespace={RESEARCH}")
    eventually(lambda: cluster.try_kubectl("get", "pods").code == 0, what="the role is in force")
    return Plugin(platform, programs, cluster.kubeconfig)


def has_reason(plugin: Plugin, *options: str) -> bool:
    return [gang["code"] for gang in plugin.data("queue", *options)] == ["WaitingForQuota"]


def test_admin_sees_queue_by_namespace(admin: Plugin) -> None:
    eventually(lambda: has_reason(admin, "-n", RESEARCH), what="the waiting pod has its reason")
    assert admin.data("queue") == [], "the namespace of the context is default"
    assert admin("queue", "-A", "-o", "name") == f"{RESEARCH}/train-0\n"
    assert "TENANT" not in admin("queue", "-A")


def test_admin_sees_explanation_usage_and_status(admin: Plugin) -> None:
    eventually(lambda: has_reason(admin, "-A"), what="the waiting pod has its reason")
    assert "WaitingForQuota" in admin("explain", "pod/train-0", "-n", RESEARCH)
    (row,) = [row for row in admin.data("top") if row["node"].startswith("v100")]
    assert (row["capacity"], row["used"], row["waiting"], row["ready"]) == (8, 8, 8, True)
    assert "v100" in {total["by"]["pool"] for total in admin.data("usage")}
    status = admin.data("status")
    assert (status["cluster"]["kind"], status["pods"]) == ("tenant", {"running": 1, "waiting": 1})
    assert all(node["ready"] for node in status["nodes"])


def test_ops_see_all_tenants(platform: Platform, ops: Plugin, admin: Plugin) -> None:
    eventually(lambda: has_reason(admin, "-A"), what="the waiting pod has its reason")
    (gang,) = ops.data("queue", "--tenant", "plugged")
    assert (gang["name"], gang["namespace"], gang["tenant"]) == ("train-0", RESEARCH, "plugged")
    explained = ops("explain", "train-0", "-n", RESEARCH, "--tenant", "plugged")
    assert "WaitingForQuota" in explained
    assert "Pool:" in explained, "a fact of the gateway"
    assert {row["tenant"] for row in ops.data("top", "--tenant", "plugged")["tenants"]} == {"plugged"}
    status = json.loads(ops.run("vkgateway", "status", "-o", "json").out)
    assert (status["cluster"]["kind"], status["problems"]) == ("management", [])
    assert "plugged" in {tenant["name"] for tenant in status["tenants"]}
    assert "leads" in status["gateway"]
    usage = ops.run("vkgateway", "usage", "--since", "1h")
    assert usage.code == (5 if platform.usage_log() else 0), str(usage)
    assert isinstance(ops.data("usage", "--days", "1"), list)
    assert ops.data("usage", "--budgets", "--tenant", "plugged") == []


def test_several_kubeconfigs_and_contexts(platform: Platform, admin: Plugin, plugged: Cluster, programs: Path) -> None:
    both = Plugin(platform, programs, Path(f"{platform.compute.kubeconfig}:{plugged.kubeconfig}"))
    tenant_context = plugged.kubectl("config", "current-context").strip()
    assert json.loads(both.run("vkgateway", "status", "-o", "json").out)["cluster"]["kind"] == "management"
    assert both.data("status", "--context", tenant_context)["cluster"]["kind"] == "tenant"
    alone = ("--kubeconfig", str(plugged.kubeconfig))
    assert both.data("status", *alone)["cluster"]["context"] == tenant_context


def test_few_rights_suffice_for_own_namespace(reader: Plugin) -> None:
    eventually(lambda: has_reason(reader), what="the waiting pod has its reason")
    assert "WaitingForQuota" in reader("explain", "train-0")
    top = reader.run("vkgateway", "top", "-o", "json")
    (row,) = json.loads(top.out)
    assert (row["used"], row["waiting"], row["capacity"]) == (8, 8, None)
    assert "cannot list nodes" in top.err


def test_missing_right_names_the_way_out(reader: Plugin, plugged: Cluster) -> None:
    result = reader.run("vkgateway", "queue", "-A")
    assert result.code == 5, str(result)
    assert f"user 'system:serviceaccount:{RESEARCH}:reader' cannot list pods everywhere" in result.err
    question = next(line for line in result.err.splitlines() if "Check: " in line).partition("Check: kubectl ")[2]
    asked = reader.run(*question.split())
    assert (asked.code, asked.out.strip()) == (1, "no")
    grant = result.err.partition("can grant it: kubectl ")[2].splitlines()[0].replace("NAME", "reader-view")
    plugged.kubectl(*grant.split())
    try:
        eventually(lambda: reader.run("vkgateway", "queue", "-A").code == 0, what="the proposed role suffices")
    finally:
        plugged.kubectl("delete", "clusterrolebinding", "reader-view")


def test_two_roles_suffice_for_ops(platform: Platform, plugged: Cluster, programs: Path, tmp_path: Path) -> None:
    if not platform.usage_log():
        pytest.skip("the gateway is no pod, so only its user reads its state")
    compute = platform.compute
    compute.kubectl("create", "serviceaccount", "watcher")
    cluster = compute.with_token(compute.kubectl("create", "token", "watcher").strip(), tmp_path)
    watcher = Plugin(platform, programs, cluster.kubeconfig)
    watcher.environment["VKGATEWAY_DATA_DIR"] = str(tmp_path)
    refused = watcher.run("vkgateway", "queue")
    assert refused.code == 5
    assert "cannot get leases.coordination.k8s.io 'gateway' in namespace 'vkgateway-system'" in refused.err
    assert "--role=vkgateway-state-reader --serviceaccount=default:watcher" in refused.err
    state = ("rolebinding", "watcher", "-n", "vkgateway-system")
    viewer = ("clusterrolebinding", "watcher")
    compute.kubectl("create", *state, "--role=vkgateway-state-reader", "--serviceaccount=default:watcher")
    compute.kubectl("create", *viewer, "--clusterrole=vkgateway-viewer", "--serviceaccount=default:watcher")
    try:
        eventually(lambda: watcher.run("vkgateway", "queue").code == 0, what="the proposed role suffices")
        assert watcher.data("top", "--tenant", "plugged")["tenants"]
        status = json.loads(watcher.run("vkgateway", "status", "-o", "json").out)
        assert (status["problems"], bool(status["tenants"])) == ([], True)
        assert "gateway-metrics.txt" in watcher.bundle(tmp_path / "watcher.tar.gz")
    finally:
        compute.kubectl("delete", *state)
        compute.kubectl("delete", *viewer)
        compute.kubectl("delete", "serviceaccount", "watcher")


def test_silent_server_is_reported(platform: Platform, programs: Path, tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        config = {
            "clusters": [{"name": "c", "cluster": {"server": f"https://127.0.0.1:{port}"}}],
            "contexts": [{"name": "c", "context": {"cluster": "c"}}],
            "current-context": "c",
        }
        (tmp_path / "config").write_text(json.dumps(config))
        result = Plugin(platform, programs, tmp_path / "config").run("vkgateway", "queue")
        assert result.code == 5
        assert "--request-timeout" in result.err


def test_kubectl_completes_commands_and_values(admin: Plugin, plugged: Cluster) -> None:
    assert "report" in completions(admin, "re")
    assert completions(admin, "explain", "-n", RESEARCH, "tr") == ["train-0"]
    assert RESEARCH in completions(admin, "queue", "-n", "")
    assert completions(admin, "queue", "--context", "") == [plugged.kubectl("config", "current-context").strip()]


def completions(plugin: Plugin, *words: str) -> list[str]:
    """Return the values with which kubectl completes the last word."""
    result = plugin.run("__complete", "vkgateway", *words)
    assert result.code == 0, str(result)
    return [line.partition("\t")[0] for line in result.out.splitlines() if not line.startswith(":")]


def test_bundles_contain_no_secret(
    platform: Platform, admin: Plugin, ops: Plugin, reader: Plugin, plugged: Cluster, tmp_path: Path
) -> None:
    plugged.apply(*secret_objects())
    bundles = {
        "admin": admin.bundle(tmp_path / "admin.tar.gz"),
        "reader": reader.bundle(tmp_path / "reader.tar.gz"),
        "ops": ops.bundle(tmp_path / "ops.tar.gz", "--tenant", "plugged"),
    }
    configs = [file.kubeconfig for file in (plugged, platform.compute)]
    keys = [client_key(file, plugged.kubectl_path) for file in configs]
    for name, files in bundles.items():
        text = "\n".join((*files, *files.values()))
        assert CANARY not in text, f"{name}: {text[max(0, text.find(CANARY) - 200) : text.find(CANARY) + 100]}"
        assert not [key for key in keys if key and key in text], name
        assert "PRIVATE KEY" not in text
    assert {"pods.json", "events.json", "webhooks.json", "gangs.json"} <= bundles["admin"].keys()
    assert '"reason": "Failed"' in bundles["admin"]["events.json"]
    assert "nodes.json" not in bundles["reader"]
    assert "cannot list nodes" in bundles["reader"]["index.json"]
    wanted = {"tenants.json", "gateway-state.json", "gateway-metrics.txt", "gateway.log", "usage.json"}
    assert wanted <= bundles["ops"].keys(), bundles["ops"]["index.json"]
    assert '"event"' in bundles["ops"]["gateway.log"]
    assert "plugged" in bundles["ops"]["tenants.json"]


def secret_objects() -> list[Document]:
    """Return a ConfigMap, a Secret, an event, and a webhook without calls, with canaries."""
    place = {"name": "hidden", "namespace": RESEARCH}
    url = f"https://127.0.0.1:1/{CANARY}"
    rule = {"apiGroups": ["none.example"], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["nones"]}
    webhook = {
        "name": "none.example.com",
        "admissionReviewVersions": ["v1"],
        "sideEffects": "None",
        "clientConfig": {"url": url},
        "rules": [rule],
    }
    return [
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": place, "data": {"key": f"{CANARY}-data"}},
        {
            "apiVersion": "v1",
            "kind": "Event",
            "metadata": place,
            "involvedObject": {"apiVersion": "v1", "kind": "Pod", "name": "holds", "namespace": RESEARCH},
            "reason": "Failed",
            "type": "Warning",
            "message": f"exec: {CANARY}-message: not found",
            "source": {"component": "kubelet"},
        },
        {"apiVersion": "v1", "kind": "Secret", "metadata": place, "stringData": {"key": f"{CANARY}-secret"}},
        {
            "apiVersion": "admissionregistration.k8s.io/v1",
            "kind": "ValidatingWebhookConfiguration",
            "metadata": {"name": "hidden", "annotations": {"url": url}},
            "webhooks": [webhook],
        },
    ]


def client_key(kubeconfig: Path, kubectl: str) -> str:
    """Return the private key of a kubeconfig's first user, in base64; empty if it has none."""
    result = run_program(kubectl, "--kubeconfig", str(kubeconfig), "config", "view", "--raw", "-o", "json")
    user = json.loads(result.out)["users"][0]["user"]
    return str(user.get("client-key-data") or "")
