"""Platforms whose gateway, etcd and control planes are pods: the chart, installed into an embedded cluster."""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import yaml

from operators.programs import HELM
from operators.published import provide_programs
from tests.e2e.cluster import CommandResult, Document, Platform, eventually, run_program
from tests.e2e.strangers import unverified_context
from tests.support.machine import patience, patience_option
from vkgateway.planes.templates import SHIPPED_FOLDER
from vkgateway_platform.embedded import compute
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord, load_record

CHART: Final = Path(__file__).parents[2] / "deploy/chart/vkgateway"
SYSTEM: Final = "vkgateway-system"
RELEASE: Final = "vkgateway"
_GATEWAY_PODS: Final = "app.kubernetes.io/name=vkgateway,app.kubernetes.io/component=gateway"
_INSTALL_SECONDS: Final = 300
_TOKEN_FILE: Final = "reader.token"


@dataclass
class ChartPlatform(Platform):
    """Embedded cluster with a release of the chart."""

    helm_path: str = ""
    name: str = "vkgateway"
    """Start of the names of the chart's objects, the value `nameOverride`."""

    def try_helm(self, *args: str, timeout: float = _INSTALL_SECONDS + 30) -> CommandResult:
        """Run helm, and return its answer even if it fails."""
        return run_program(self.helm_path, "--kubeconfig", str(self.compute.kubeconfig), *args, timeout=timeout)

    def helm(self, *args: str) -> str:
        """Run helm, which must succeed, and return its output."""
        result = self.try_helm(*args)
        assert result.code == 0, f"helm {' '.join(args)}: {result}"
        return result.out

    def upgrade(self, *values: Document) -> str:
        """Upgrade the release, keeping its values but for these."""
        files = write_values(self.data_dir, *values)
        options = (part for file in files for part in ("--values", str(file)))
        return self.helm("upgrade", RELEASE, str(CHART), "-n", SYSTEM, "--reuse-values", "--wait", *options)

    def write_templates(self) -> Path:
        """Return the directory of the shipped templates, which are also in the chart."""
        return SHIPPED_FOLDER

    def use_templates(self, folder: Path) -> None:
        """Upgrade the release to the tenant templates in a directory."""
        templates = {
            template.name: {str(path.relative_to(template)): path.read_text() for path in _files(template)}
            for template in sorted(folder.iterdir())
        }
        self.upgrade({"templates": templates})

    def publish_api_server(self, tenant: str) -> None:
        """Give a tenant's API server an address that other clusters reach."""
        exposure = json.dumps({"spec": {"apiServer": {"exposure": {"type": "NodePort"}}}})
        self.compute.kubectl("patch", "tenant", tenant, "--type=merge", "-p", exposure)
        self.compute.kubectl("wait", f"tenant/{tenant}", "--for=condition=Published", patience_option(60), timeout=70)
        self.kubeconfigs.pop(tenant, None)
        cluster = self.tenant(tenant)
        eventually(lambda: cluster.try_kubectl("get", "namespaces").code == 0, what=f"the address of {tenant}")

    def metrics(self) -> str:
        """Return the metrics of the leading gateway, whose certificate names no address of a pod."""
        token = (self.data_dir / _TOKEN_FILE).read_text()
        url = f"https://{self.leader()['status']['podIP']}:9632/metrics"
        request = urllib.request.Request(url, headers={"Authorization": f"Bearer {token}"})
        with urllib.request.urlopen(request, context=unverified_context(), timeout=patience(30)) as answer:
            return str(answer.read().decode())

    def decision_log(self) -> list[str]:
        """Collect the decisions from the gateways' logs."""
        return [str(self._collect_log("decisions"))]

    def usage_log(self) -> list[str]:
        """Collect the records of usage from the gateways' logs."""
        return ["--log", str(self._collect_log("usage"))]

    def _collect_log(self, name: str) -> Path:
        logs = [self.compute.kubectl("logs", "-n", SYSTEM, pod["metadata"]["name"]) for pod in self.gateway_pods()]
        lines = [line for log in logs for line in log.splitlines() if json.loads(line).get("log") == name]
        path = self.data_dir / f"{name}.jsonl"
        path.write_text("".join(f"{line}\n" for line in lines))
        return path

    def metrics_url(self) -> str:
        """Return the URL of the Service for metrics and state."""
        service = self.compute.get("service", f"{self.name}-kubelet", "-n", SYSTEM)
        return f"https://{service['spec']['clusterIP']}:9632"

    def health_url(self) -> str:
        """Return the URL of the health endpoint of a gateway pod."""
        pod = self.gateway_pods()[0]
        (port,) = (
            port["containerPort"]
            for container in pod["spec"]["containers"]
            for port in container["ports"]
            if port["name"] == "health"
        )
        return f"http://{pod['status']['podIP']}:{port}"

    def gateway_pods(self) -> list[Document]:
        """Return the pods of the gateway."""
        pods: list[Document] = self.compute.get("pods", "-n", SYSTEM, "-l", _GATEWAY_PODS)["items"]
        return pods

    def leader(self) -> Document:
        """Return the pod of the gateway that holds the Lease."""
        holder = self.compute.get("lease", "gateway", "-n", SYSTEM)["spec"]["holderIdentity"]
        return next(pod for pod in self.gateway_pods() if pod["metadata"]["name"] == holder.split("/")[0])

    def kill_gateway(self) -> None:
        """Kill the process of the leading gateway."""
        os.kill(gateway_process(self.leader()), signal.SIGKILL)

    @contextlib.contextmanager
    def stopped_gateway(self) -> Iterator[None]:
        """Do nothing: another gateway would lead, and the kubelet restarts one that does not answer."""
        yield

    @property
    def host_address(self) -> str:
        """Address of this machine at which control planes reach servers of the tests."""
        return platform_record(self).address

    def has_control_plane(self, tenant: str) -> bool:
        """Return whether the namespace of a tenant's control plane exists."""
        return self.compute.find("namespace", _namespace(tenant)) is not None

    def runs_control_plane(self, tenant: str) -> bool:
        """Return whether a pod of a tenant's control plane exists."""
        return bool(self.compute.get("pods", "-n", _namespace(tenant))["items"])

    def control_plane_file(self, tenant: str, name: str) -> bytes:
        """Return a file of a tenant's control plane, from its Secret."""
        return base64.b64decode(self.compute.get("secret", "files", "-n", _namespace(tenant))["data"][name])

    @contextlib.contextmanager
    def open_etcd(self) -> Iterator[str]:
        """Forward a local port to the first pod of etcd, and yield its URL.

        The certificate names no address of a pod.
        """
        command = (*self.compute.kubectl_command, "port-forward", "-n", SYSTEM, f"pod/{self.name}-etcd-0", ":2379")
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as forwarding:
            assert forwarding.stdout is not None
            line = forwarding.stdout.readline()
            yield f"https://127.0.0.1:{line.split()[2].rpartition(':')[2]}"
            forwarding.terminate()

    def gateway_servers(self) -> dict[int, str]:
        """Return the ports of the gateway's and etcd's servers, with the address of each."""
        services = self.compute.get("services", "-n", SYSTEM)["items"]
        pods = self.compute.get("pods", "-n", SYSTEM)["items"]
        found = {
            port["port"]: service["spec"]["clusterIP"]
            for service in services
            for port in service["spec"]["ports"]
            if service["spec"]["clusterIP"] != "None"
        }
        for pod in pods:
            ports = [port for container in pod["spec"]["containers"] for port in container.get("ports", [])]
            found |= {port["containerPort"]: pod["status"]["podIP"] for port in ports}
        return found


def platform_record(platform: Platform) -> PlatformRecord:
    """Return the record of an embedded platform."""
    record = load_record(PlatformPaths(platform.data_dir).record_path)
    assert record is not None
    return record


def gateway_process(pod: Document) -> int:
    """Return the process id of a gateway pod on this machine, where the real node's containers run."""
    process = find_gateway_process(pod)
    assert process is not None, f"no process of pod {pod['metadata']['name']}"
    return process


def find_gateway_process(pod: Document) -> int | None:
    """Return the process id of a gateway pod, or None if no process runs."""
    uid = pod["metadata"]["uid"]
    for process in psutil.process_iter(["cmdline"]):
        with contextlib.suppress(OSError):
            if "serve" in (process.info["cmdline"] or ()) and uid in Path(f"/proc/{process.pid}/cgroup").read_text():
                return process.pid
    return None


def _namespace(tenant: str) -> str:
    return f"vkgateway-tenant-{tenant}"


def install_chart(platform: ChartPlatform, *values: Document) -> None:
    """Load the images, install the chart, register the cluster's pools, and wait for the gateway."""
    load_images(platform)
    platform.helm_path = str(asyncio.run(provide_programs(HELM, report=print)) / "helm")
    paths = PlatformPaths(platform.data_dir)
    name = {"nameOverride": platform.name}
    files = [paths.gateway.chart_values, *write_values(platform.data_dir, name, *values)]
    platform.helm(
        *("install", RELEASE, str(CHART), "--namespace", SYSTEM, "--create-namespace", "--wait"),
        *(part for file in files for part in ("--values", str(file))),
        patience_option(_INSTALL_SECONDS),
    )
    platform.compute.kubectl("apply", "-f", str(paths.gateway.compute_cluster))
    platform.compute.apply(*compute.lean_pods(platform_record(platform)))
    create_reader(platform)
    platform.environment["VKGATEWAY_KUBECONFIG"] = str(platform.compute.kubeconfig)


def load_images(platform: Platform) -> None:
    """Load the images of the gateway and of control planes into the real node."""
    built = run_program(sys.executable, "-m", "scripts.image", timeout=1800)
    assert built.code == 0, str(built)
    (archive,) = (line.split()[1] for line in built.out.splitlines() if line.startswith("archive"))
    platform.vkgateway("image", "load", archive, timeout=300)
    platform.vkgateway("image", "load-control-planes", timeout=3600)


def write_values(folder: Path, *values: Document) -> list[Path]:
    """Write each document of values into a file; later ones override."""
    files = []
    for number, document in enumerate(values):
        path = folder / f"values-{number}.yaml"
        path.write_text(yaml.safe_dump(document))
        files.append(path)
    return files


def create_reader(platform: ChartPlatform) -> None:
    """Create a user that reads the gateway's metrics, and store its token."""
    compute = platform.compute
    compute.kubectl("create", "serviceaccount", "reader", "-n", SYSTEM)
    role, subject = "--clusterrole=vkgateway-metrics-reader", f"--serviceaccount={SYSTEM}:reader"
    compute.kubectl("create", "clusterrolebinding", "test-metrics-reader", role, subject)
    token = compute.kubectl("create", "token", "reader", "-n", SYSTEM, "--duration=24h")
    (platform.data_dir / _TOKEN_FILE).write_text(token)


def _files(template: Path) -> list[Path]:
    return sorted(path for path in template.rglob("*") if path.is_file())
