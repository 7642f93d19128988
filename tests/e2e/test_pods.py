"""Pods of a tenant through kubectl: they run in the compute cluster, and status, logs and exec work."""

from __future__ import annotations

import json
import subprocess
from pathlib import Path

import pytest

from tests.e2e.cluster import BUSYBOX, REAL, Cluster, CommandResult, Platform, eventually, pod_manifest
from tests.support.machine import patience, patience_option

DISRUPTION = "DisruptionTarget"


def find_condition(document: dict[str, object], kind: str) -> dict[str, str]:
    status = document["status"]
    assert isinstance(status, dict)
    return next((entry for entry in status.get("conditions", []) if entry["type"] == kind), {})


def test_deployment_rolls_out(alpha: Cluster) -> None:
    labels = {"app": "web"}
    template = {
        "metadata": {"labels": labels},
        "spec": {"nodeSelector": {"vkgateway.io/pool": "a100"}, "containers": [{"name": "nginx", "image": "nginx"}]},
    }
    spec = {"replicas": 3, "selector": {"matchLabels": labels}, "template": template}
    alpha.apply({"apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"name": "web"}, "spec": spec})
    alpha.kubectl("rollout", "status", "deployment/web", patience_option(60), timeout=70)
    alpha.kubectl("set", "image", "deployment/web", "nginx=nginx:2")
    alpha.kubectl("rollout", "status", "deployment/web", patience_option(60), timeout=70)
    alpha.kubectl("delete", "deployment", "web", "--wait")
    eventually(lambda: not alpha.get("pods", "-l", "app=web")["items"], what="the deployment's pods gone")


def test_gpu_pod_runs_in_its_pool_and_hides_the_host(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(
        pod_manifest(
            "gpu",
            container={"resources": {"limits": {"nvidia.com/gpu": "8"}}},
            nodeSelector={"vkgateway.io/pool": "a100"},
        )
    )
    alpha.wait_pod("gpu")

    above = alpha.kubectl("get", "pod", "gpu", "-o", "json")
    below = platform.compute.get("pod", "gpu", "-n", "alpha--default")
    node = platform.compute.get("node", below["spec"]["nodeName"])
    assert node["metadata"]["labels"]["platform.vkgateway.io/pool"] == "a100"
    assert json.loads(above)["spec"]["nodeName"] in ("a100.zone-0.local", "a100.zone-1.local")
    assert below["spec"]["nodeName"] not in above
    assert "alpha--default" not in above
    alpha.kubectl("delete", "pod", "gpu", "--wait", patience_option(30))
    # The tenant pod goes when the compute pod has ended, which its node then removes.
    eventually(lambda: platform.compute.find("pod", "gpu", "-n", "alpha--default") is None, what="gone below")


def test_readiness_gate_is_synchronized_both_ways(platform: Platform, alpha: Cluster) -> None:
    gate = "example.org/warm"

    def ready_state() -> tuple[str, str]:
        below = platform.compute.get("pod", "warm", "-n", "alpha--default")
        return find_condition(alpha.get("pod", "warm"), "Ready")["status"], find_condition(below, "Ready")["status"]

    def set_gate(status: str) -> None:
        patch = json.dumps({"status": {"conditions": [{"type": gate, "status": status}]}})
        alpha.kubectl("patch", "pod", "warm", "--subresource=status", "--type=strategic", "-p", patch)

    alpha.apply(
        pod_manifest("warm", nodeSelector={"vkgateway.io/pool": "a100"}, readinessGates=[{"conditionType": gate}]),
    )
    alpha.wait_pod("warm", "condition=ContainersReady")
    assert ready_state() == ("False", "False")
    for status in ("True", "False"):
        set_gate(status)
        eventually(lambda status=status: ready_state() == (status, status), what=f"Ready is {status}")  # type: ignore[misc]
    alpha.kubectl("delete", "pod", "warm", "--wait=false")


@pytest.mark.usefixtures("real")
def test_job_completes(alpha: Cluster) -> None:
    alpha.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "sum"},
            "spec": {
                "completions": 3,
                "parallelism": 3,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        **REAL,
                        "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", "echo $((6*7))"]}],
                    }
                },
            },
        }
    )
    alpha.kubectl("wait", "job/sum", "--for=condition=Complete", patience_option(60), timeout=70)
    assert alpha.kubectl("logs", "-l", "job-name=sum", "--prefix=false").split() == ["42", "42", "42"]
    alpha.kubectl("delete", "job", "sum", "--wait", "--cascade=foreground")


@pytest.mark.usefixtures("real")
def test_job_retries_a_failed_pod(alpha: Cluster) -> None:
    alpha.apply(
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": {"name": "bad"},
            "spec": {
                "backoffLimit": 1,
                "template": {
                    "spec": {
                        "restartPolicy": "Never",
                        **REAL,
                        "containers": [{"name": "main", "image": BUSYBOX, "command": ["sh", "-c", "exit 3"]}],
                    }
                },
            },
        }
    )
    alpha.kubectl("wait", "job/bad", "--for=condition=Failed", patience_option(90), timeout=100)
    pods = alpha.get("pods", "-l", "job-name=bad")["items"]
    codes = [entry["status"]["containerStatuses"][0]["state"]["terminated"]["exitCode"] for entry in pods]
    assert codes == [3, 3]
    alpha.kubectl("delete", "job", "bad", "--wait", "--cascade=foreground")


@pytest.mark.usefixtures("real")
def test_logs_follow_tail_since_timestamps_previous(alpha: Cluster) -> None:
    # The first container goes on when it is followed. The second runs on, so that the previous one stays the same.
    lines = "for i in 2 3 4 5 6; do echo line $i; sleep 0.5; done; exit 1"
    container = {"volumeMounts": [{"name": "kept", "mountPath": "/kept"}]}
    volumes = [{"name": "kept", "emptyDir": {}}]
    start = "touch /kept/ran; echo line 1; until [ -e /kept/followed ]; do sleep 0.1; done"
    command = f"[ ! -e /kept/ran ] || sleep 3600; {start}; {lines}"
    alpha.apply(pod_manifest("talk", command=command, container=container, volumes=volumes, **REAL))
    alpha.wait_pod("talk")
    with subprocess.Popen((*alpha.kubectl_command, "logs", "-f", "talk"), stdout=subprocess.PIPE, text=True) as log:
        assert log.stdout is not None
        try:
            assert log.stdout.readline() == "line 1\n"
            alpha.kubectl("exec", "talk", "--", "touch", "/kept/followed")
            rest, _ = log.communicate(timeout=patience(30))
        finally:
            log.kill()
    assert rest.splitlines() == [f"line {number}" for number in range(2, 7)]
    eventually(lambda: alpha.get("pod", "talk")["status"]["containerStatuses"][0]["restartCount"] >= 1, what="restart")
    eventually(lambda: alpha.try_kubectl("logs", "--previous", "talk").code == 0, what="previous logs")
    previous = alpha.kubectl("logs", "--previous", "--tail=2", "talk")
    assert previous.splitlines() == ["line 5", "line 6"]
    stamped = alpha.kubectl("logs", "--previous", "--timestamps", "--tail=1", "talk")
    stamp, _, rest = stamped.partition(" ")
    assert stamp.startswith("20")
    assert rest.strip() == "line 6"
    assert len(alpha.kubectl("logs", "--previous", "--since=1h", "talk").splitlines()) == 6
    alpha.kubectl("delete", "pod", "talk", "--wait")


@pytest.mark.usefixtures("real")
def test_exec_with_input_exit_codes_and_a_terminal(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("shell", **REAL))
    alpha.wait_pod("shell")

    assert alpha.kubectl("exec", "-i", "shell", "--", "cat", stdin="through and back\n") == "through and back\n"
    assert alpha.try_kubectl("exec", "shell", "--", "sh", "-c", "echo out; echo err >&2; exit 7").code == 7
    errors = alpha.try_kubectl("exec", "shell", "--", "sh", "-c", "echo err >&2")
    assert errors.err.strip() == "err"
    terminal = subprocess.run(
        [
            "script",
            "-qec",
            f"{alpha.kubectl_path} --kubeconfig {alpha.kubeconfig} exec -it shell -- sh -c 'tty; stty size'",
            "/dev/null",
        ],
        capture_output=True,
        text=True,
        timeout=patience(30),
        check=False,
        stdin=subprocess.DEVNULL,
    )
    assert "/dev/pts/" in terminal.stdout, terminal
    alpha.kubectl("delete", "pod", "shell", "--wait")


@pytest.mark.usefixtures("real")
def test_config_map_change_reaches_the_container(alpha: Cluster) -> None:
    config = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "settings"}, "data": {"colour": "red"}}
    alpha.apply(
        config,
        pod_manifest(
            "reader",
            container={"volumeMounts": [{"name": "settings", "mountPath": "/settings"}]},
            volumes=[{"name": "settings", "configMap": {"name": "settings"}}],
            **REAL,
        ),
    )
    alpha.wait_pod("reader")
    assert alpha.kubectl("exec", "reader", "--", "cat", "/settings/colour") == "red"
    alpha.apply(config | {"data": {"colour": "blue"}})
    # The file is missing for a moment while the kubelet replaces it.
    read = ("exec", "reader", "--", "cat", "/settings/colour")
    eventually(lambda: alpha.try_kubectl(*read).out == "blue", what="blue inside")
    alpha.kubectl("delete", "pod", "reader", "--wait")


@pytest.mark.usefixtures("real")
def test_pod_token_is_valid_for_the_tenants_api_only(alpha: Cluster, beta: Cluster, tmp_path: Path) -> None:
    alpha.apply(pod_manifest("caller", **REAL))
    alpha.wait_pod("caller")
    secret = "/var/run/secrets/kubernetes.io/serviceaccount"
    token = alpha.kubectl("exec", "caller", "--", "cat", f"{secret}/token")
    authority = alpha.kubectl("exec", "caller", "--", "cat", f"{secret}/ca.crt")
    assert authority == alpha.get("configmap", "kube-root-ca.crt")["data"]["ca.crt"]
    assert alpha.with_token(token, tmp_path).kubectl("auth", "whoami", "-o", "json").count("default:default") == 1
    assert "Unauthorized" in beta.with_token(token, tmp_path).try_kubectl("auth", "whoami").err
    # Debian's busybox speaks no TLS that API servers accept today; that they can be reached is seen by connecting.
    reach = "nc -w 3 $KUBERNETES_SERVICE_HOST $KUBERNETES_SERVICE_PORT </dev/null >/dev/null && echo reached"
    # kube-proxy learns of the Service with a delay.
    call = ("exec", "caller", "--", "sh", "-c", reach)
    eventually(lambda: alpha.try_kubectl(*call).out.strip() == "reached", what="the API server reached")
    alpha.kubectl("delete", "pod", "caller", "--wait")


def test_pod_names_its_missing_secret_and_starts_once_it_exists(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(
        pod_manifest(
            "needy", container={"env": [{"name": "K", "valueFrom": {"secretKeyRef": {"name": "key", "key": "k"}}}]}
        )
    )
    eventually(
        lambda: any(
            reason == "MandatorySecretNotFound" and '"key"' in message for reason, message in alpha.events("needy")
        ),
        what="an event that names the Secret",
    )
    assert platform.compute.find("pod", "needy", "-n", "alpha--default") is None
    alpha.kubectl("create", "secret", "generic", "key", "--from-literal=k=v")
    alpha.wait_pod("needy")
    alpha.kubectl("delete", "pod", "needy", "--wait")
    alpha.kubectl("delete", "secret", "key")


@pytest.mark.usefixtures("real")
def test_kubectl_debug_follows_the_pod_security_level(alpha: Cluster) -> None:
    alpha.apply(pod_manifest("debugged", **REAL))
    alpha.wait_pod("debugged")

    def run_debug(name: str, profile: str) -> CommandResult:
        arguments = ("debug", "debugged", "-c", name, f"--profile={profile}", f"--image={BUSYBOX}", "--target=main")
        return alpha.try_kubectl(*arguments, "--", "sh", "-c", "echo seen from inside")

    def container_state(name: str) -> dict[str, dict[str, str]]:
        statuses = alpha.get("pod", "debugged")["status"].get("ephemeralContainerStatuses") or []
        return next((status["state"] for status in statuses if status["name"] == name), {})

    assert 'violates PodSecurity "baseline:latest"' in run_debug("root", "sysadmin").err
    assert run_debug("looks", "baseline").code == 0
    eventually(lambda: "terminated" in container_state("looks"), what="the end of the container that may")
    assert alpha.kubectl("logs", "debugged", "-c", "looks").strip() == "seen from inside"
    refused = alpha.try_kubectl("attach", "debugged", "-c", "looks")
    assert "container looks not found in pod debugged_default" in refused.err
    alpha.kubectl("delete", "pod", "debugged", "--wait")


def test_deleted_compute_pod_fails_the_tenant_pod_with_a_reason(platform: Platform, alpha: Cluster) -> None:
    # Its shell ignores the signal: the gateway has the grace period to read the log.
    where = REAL | {"terminationGracePeriodSeconds": 10} if platform.real else {}
    alpha.apply(pod_manifest("victim", command="echo last words; sleep 3600", **where))
    alpha.wait_pod("victim")
    eventually(lambda: alpha.kubectl("logs", "victim"), what="a line in its log")
    platform.compute.kubectl("delete", "pod", "victim", "-n", "alpha--default", "--wait=false")
    eventually(lambda: alpha.pod_phase("victim") == "Failed", what="the pod failed above")

    assert find_condition(alpha.get("pod", "victim"), DISRUPTION)["status"] == "True"
    eventually(lambda: platform.compute.find("pod", "victim", "-n", "alpha--default") is None, what="gone below")
    first, *kept_lines = alpha.kubectl("logs", "victim").splitlines()
    assert "ran and was deleted in the compute cluster" in first
    assert kept_lines[-1] == ("last words" if platform.real else "Pods that should really run belong on a real node.")
    alpha.kubectl("delete", "pod", "victim", "--wait")
    eventually(lambda: platform.compute.find("pod", "victim", "-n", "alpha--default") is None, what="gone below")


def test_forced_deletion_deletes_the_compute_pod(platform: Platform, alpha: Cluster) -> None:
    alpha.apply(pod_manifest("forced"))
    alpha.wait_pod("forced")
    alpha.kubectl("delete", "pod", "forced", "--force", "--grace-period=0")
    eventually(lambda: platform.compute.find("pod", "forced", "-n", "alpha--default") is None, what="gone below")


def test_compute_namespace_is_deleted_with_the_tenants(platform: Platform, alpha: Cluster) -> None:
    alpha.create_namespace("team")
    alpha.kubectl("run", "one", "-n", "team", "--image", BUSYBOX, "--", "sleep", "3600")
    eventually(lambda: platform.compute.find("pod", "one", "-n", "alpha--team"), what="the pod below")
    alpha.kubectl("delete", "namespace", "team", "--wait", timeout=90)
    eventually(lambda: platform.compute.find("namespace", "alpha--team") is None, what="the namespace gone below")
