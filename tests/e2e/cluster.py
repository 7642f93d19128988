"""Clusters and platforms through their real programs: the command line and kubectl, as a user runs them."""

from __future__ import annotations

import asyncio
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import msgspec
import yaml

from tests.e2e import gatewaysocket
from tests.e2e.watching import get_watched, is_watched, watching
from tests.support.machine import patience, patience_option
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway.planes.supervisor.client import SupervisorClient
from vkgateway.planes.templates import SHIPPED_FOLDER

T = TypeVar("T")
Document = dict[str, Any]

COMPUTE_VERSION = os.environ.get("VKGATEWAY_TEST_COMPUTE_VERSION", "")
TENANT_VERSION = os.environ.get("VKGATEWAY_TEST_TENANT_VERSION", "")
"""Kubernetes version of the compute cluster and of tenants, if tests run with another than the default."""
COMPUTE_MINOR = int((COMPUTE_VERSION or DEFAULT_KUBERNETES_VERSION).split(".")[1])

VKGATEWAY = (sys.executable, "-m", "vkgateway")
BUSYBOX = "vkgateway.local/busybox:1"
_SHORT_LIVED = {"GOGC": "off"}
"""Environment of short-lived Go programs: without garbage collection, thousands of kubectl runs use a fifth less CPU.
"""
_CHANGES_TOGETHER = 0.05
"""Seconds within which changes are handled together."""


class NotFoundError(AssertionError):
    """An object does not exist that a test reads by name."""


@dataclass(frozen=True)
class CommandResult:
    """Exit code and output of a finished program."""

    code: int
    out: str
    err: str

    def __str__(self) -> str:
        return f"exit code {self.code}\n{self.out}\n{self.err}"


def run_program(
    *argv: str, stdin: str | None = None, timeout: float = 120, env: dict[str, str] | None = None
) -> CommandResult:
    """Run a program to its end."""
    done = subprocess.run(
        argv,
        input=stdin,
        capture_output=True,
        text=True,
        timeout=patience(timeout),
        check=False,
        env=os.environ | (env or {}),
    )
    return CommandResult(done.returncode, done.stdout, done.stderr)


def version_option(args: tuple[str, ...]) -> tuple[str, ...]:
    """Return the version option for a command that accepts one and was given none."""
    version = {
        ("up",): COMPUTE_VERSION,
        ("tenant", "create"): TENANT_VERSION,
        ("conformance", "prepare"): TENANT_VERSION,
        ("conformance", "list"): TENANT_VERSION,
    }
    version_found = next((found for words, found in version.items() if args[: len(words)] == words), "")
    return ("--kubernetes-version", version_found) if version_found and "--kubernetes-version" not in args else ()


def eventually(condition: Callable[[], T], *, seconds: float = 120, what: str = "") -> T:
    """Call a function until its result is true, and return the result.

    Reads by `Cluster.get`, `find`, `phase` and `events` are answered from watches, and each change is checked. State of
    other processes is polled, with pauses that grow to half a second: most such functions start a program, which takes
    up to a tenth of a second of CPU.

    An object that `Cluster.get` does not find may exist later.
    """
    began, limit = time.monotonic(), patience(seconds)
    with watching() as watches:
        while True:
            missing = ""
            try:
                found = condition()
            except NotFoundError as error:
                missing = f" ({error})"
            else:
                if found:
                    return found
            waited = time.monotonic() - began
            if waited > limit:
                raise AssertionError(f"not seen within {limit:.0f} s: {what or condition}{missing}")
            time.sleep(_CHANGES_TOGETHER)
            watches.pause(min(0.1 + 0.1 * waited, 0.5) - _CHANGES_TOGETHER)


@contextlib.contextmanager
def frozen(*pids: int) -> Iterator[None]:
    """Stop processes in the block, so that they answer nothing."""
    for pid in pids:
        os.kill(pid, signal.SIGSTOP)
    try:
        yield
    finally:
        for pid in pids:
            os.kill(pid, signal.SIGCONT)


@dataclass(frozen=True)
class Cluster:
    """Cluster as one of its users sees it: plain kubectl with a kubeconfig."""

    kubectl_path: str
    kubeconfig: Path

    def try_kubectl(self, *args: str, stdin: str | None = None, timeout: float = 60) -> CommandResult:
        """Run kubectl, and return its answer even if it fails."""
        return run_program(*self.kubectl_command, *args, stdin=stdin, timeout=timeout, env=_SHORT_LIVED)

    @property
    def kubectl_command(self) -> tuple[str, ...]:
        """The program with its kubeconfig."""
        return (self.kubectl_path, "--kubeconfig", str(self.kubeconfig))

    def kubectl(self, *args: str, stdin: str | None = None, timeout: float = 60) -> str:
        """Run kubectl, which must succeed, and return its output."""
        result = self.try_kubectl(*args, stdin=stdin, timeout=timeout)
        assert result.code == 0, f"kubectl {' '.join(args)}: {result}"
        return result.out

    def with_token(self, token: str, folder: Path) -> Cluster:
        """Return the same cluster for a user with only a token."""
        config = json.loads(self.kubectl("config", "view", "--raw", "-o", "json"))
        config["users"] = [{"name": user["name"], "user": {"token": token}} for user in config["users"]]
        path = folder / f"{self.kubeconfig.name}.token"
        path.write_text(json.dumps(config))
        return Cluster(self.kubectl_path, path)

    def apply(self, *documents: Document) -> None:
        """Apply manifests."""
        self.kubectl("apply", "-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": documents}))

    def get(self, *args: str) -> Document:
        """Return one object, or a list of objects."""
        if is_watched(args):
            found = get_watched(self.kubectl_command, args, _SHORT_LIVED)
            if found is None:
                raise NotFoundError(f"kubectl get {' '.join(args)}: not found")
            return found
        document: Document = json.loads(self.kubectl("get", *args, "-o", "json"))
        return document

    def find(self, *args: str) -> Document | None:
        """Return one object, or None if it does not exist."""
        if is_watched(args):
            return get_watched(self.kubectl_command, args, _SHORT_LIVED)
        result = self.try_kubectl("get", *args, "-o", "json", "--ignore-not-found")
        assert result.code == 0, str(result)
        return json.loads(result.out) if result.out.strip() else None

    def events(self, name: str) -> list[tuple[str, str]]:
        """Return reason and message of the events about an object."""
        found = self.get("events", "--field-selector", f"involvedObject.name={name}")
        return [(event["reason"], event["message"]) for event in found["items"]]

    def wait_pod(self, name: str, condition: str = "condition=Ready", *, seconds: int = 120) -> None:
        """Wait until a pod meets a condition."""
        self.kubectl("wait", f"pod/{name}", f"--for={condition}", patience_option(seconds), timeout=seconds + 10)

    def create_namespace(self, name: str) -> None:
        """Create a namespace, and wait until pods can be created in it.

        An API server refuses pods that are created more than a second before the namespace's ServiceAccount.
        """
        self.kubectl("create", "namespace", name)
        eventually(lambda: self.find("serviceaccount", "default", "-n", name), what=f"ServiceAccount of {name}")

    def apply_crds(self, *definitions: Document) -> None:
        """Apply CustomResourceDefinitions, and wait until their kinds are served and discovered.

        `kubectl wait` fails on a definition that has no conditions yet. Discovery, by which kubectl finds the kinds,
        follows a moment later.
        """
        self.apply(*definitions)
        names = [definition["metadata"]["name"] for definition in definitions]
        kinds = ",".join(names)
        eventually(lambda: all(map(self._is_established, names)), seconds=60, what=f"not served: {kinds}")
        eventually(lambda: self.try_kubectl("get", kinds, "-A").code == 0, seconds=60, what=f"not discovered: {kinds}")

    def _is_established(self, definition: str) -> bool:
        conditions = self.get("crd", definition).get("status", {}).get("conditions") or []
        return any(condition["type"] == "Established" and condition["status"] == "True" for condition in conditions)

    def pod_phase(self, name: str) -> str:
        """Return a pod's phase, or "" if it does not exist."""
        pod = self.find("pod", name)
        return str(pod["status"]["phase"]) if pod else ""


def new_data_dir() -> Path:
    """Return a data directory for a platform, with the name prefix that the test run requires.

    It is not in pytest's directory, because sockets need short paths.
    """
    return Path(tempfile.mkdtemp(prefix=os.environ.get("VKGATEWAY_TEST_PREFIX", "vkg-")))


@dataclass
class Platform:
    """Embedded platform in its own data directory."""

    data_dir: Path
    kubectl_path: str = ""
    real: bool = False
    kubeconfigs: dict[str, Cluster] = field(default_factory=dict)
    environment: dict[str, str] = field(default_factory=dict)
    """Variables for the command line, in addition to the data directory."""

    def try_vkgateway(self, *args: str, stdin: str | None = None, timeout: float = 120) -> CommandResult:
        """Run the command line, and return its answer even if it fails."""
        env = {"VKGATEWAY_DATA_DIR": str(self.data_dir)} | self.environment
        return run_program(*VKGATEWAY, *args, *version_option(args), stdin=stdin, timeout=timeout, env=env)

    def vkgateway(self, *args: str, timeout: float = 120) -> str:
        """Run the command line, which must succeed, and return its output."""
        result = self.try_vkgateway(*args, timeout=timeout)
        assert result.code == 0, f"vkgateway {' '.join(args)}: {result}"
        return result.out

    def status(self) -> Document:
        """Return the output of `vkgateway status`, even if a part is not healthy."""
        result = self.try_vkgateway("status", "-o", "json")
        assert result.out, str(result)
        document: Document = json.loads(result.out)
        return document

    def processes(self) -> dict[str, Document]:
        """Return the supervisor's processes by name, from the supervisor.

        `vkgateway status` checks more and takes a second.
        """
        found = asyncio.run(SupervisorClient.for_data_dir(self.data_dir).list_processes())
        return {state.name: msgspec.to_builtins(state) for state in found}

    def metrics(self) -> str:
        """Return the gateway's metrics, from its Unix socket."""
        return asyncio.run(gatewaysocket.read_page(self.data_dir, "/metrics"))

    def decision_log(self) -> list[str]:
        """Return the argument of `vkgateway replay` for the decision log; nothing for its default."""
        return []

    def usage_log(self) -> list[str]:
        """Return the arguments of `vkgateway usage` for the usage log; nothing for its default."""
        return []

    def metrics_url(self) -> str:
        """Return the URL at which the gateway serves metrics and state for bearers of a token."""
        status = self.status()
        return f"https://{status['address']}:{status['ports']['gateway-metrics']}"

    def health_url(self) -> str:
        """Return the URL at which the gateway reports its health, and nothing else."""
        return f"http://127.0.0.1:{self.status()['ports']['gateway-health']}"

    @property
    def templates_dir(self) -> Path:
        """The directory of the templates of tenants, which is not the platform's: that must be empty before `up`."""
        return self.data_dir.parent / f"templates-{self.data_dir.name}"

    def write_templates(self) -> Path:
        """Write the shipped templates without garbage collection below 400 MiB, and return their directory.

        A tenant's programs then need half of the CPU to start, which most tests do, and more memory.
        """
        folder = self.templates_dir
        shutil.copytree(SHIPPED_FOLDER, folder, dirs_exist_ok=True)
        file = folder / "default" / "template.yaml"
        template = yaml.safe_load(file.read_text())
        for component in template["components"].values():
            component["env"] |= {"GOGC": "off", "GOMEMLIMIT": "400MiB"}
        file.write_text(yaml.safe_dump(template))
        return folder

    def use_templates(self, folder: Path) -> None:
        """Give the gateway the tenant templates in a directory. Call it again after a change of the directory."""
        self.vkgateway("up", "--templates-dir", str(folder))

    def publish_api_server(self, tenant: str) -> None:
        """Give a tenant's API server an address that other clusters reach; a process already has one."""

    def pid_of(self, name: str) -> int:
        """Return the process ID of a program of the platform, once it runs."""
        found: int = eventually(lambda: self.processes()[name]["pid"], what=f"{name} runs")
        return found

    def kill_gateway(self) -> None:
        """Kill the gateway, which starts again. One that has not started yet is awaited first."""
        os.kill(self.pid_of("gateway"), signal.SIGKILL)

    @contextlib.contextmanager
    def stopped_gateway(self) -> Iterator[None]:
        """Stop the gateway in the block, so that it repairs nothing meanwhile; it goes on at the end."""
        with frozen(self.pid_of("gateway")):
            yield

    @property
    def host_address(self) -> str:
        """Address of this machine at which control planes reach servers of the tests."""
        return "127.0.0.1"

    def has_control_plane(self, tenant: str) -> bool:
        """Return whether any part of a tenant's control plane exists."""
        return self.runs_control_plane(tenant) or (self.data_dir / "tenants" / tenant).exists()

    def runs_control_plane(self, tenant: str) -> bool:
        """Return whether any component of a tenant's control plane runs."""
        return any(name.split("/")[1:2] == [tenant] for name in self.processes())

    def control_plane_file(self, tenant: str, name: str) -> bytes:
        """Return a file of a tenant's control plane, such as a certificate."""
        return (self.data_dir / "tenants" / tenant / name).read_bytes()

    @contextlib.contextmanager
    def open_etcd(self) -> Iterator[str]:
        """Yield a URL of the etcd of tenants."""
        yield f"https://127.0.0.1:{self.status()['ports']['etcd']}"

    def gateway_servers(self) -> dict[int, str]:
        """Return the ports of all servers of the platform, with the address of each."""
        status = self.status()
        local = {"etcd", "etcd-peer", "hollow-kubelet", "gateway-health", "gateway-page"}
        return {port: "127.0.0.1" if name in local else status["address"] for name, port in status["ports"].items()}

    @property
    def compute(self) -> Cluster:
        """Return the compute cluster, as its operators see it."""
        return Cluster(self.kubectl_path, self.data_dir / "compute.kubeconfig")

    def tenant(self, name: str) -> Cluster:
        """Return a tenant's cluster, as its admin sees it."""
        if name not in self.kubeconfigs:
            path = self.data_dir / f"{name}.test-kubeconfig"
            self.vkgateway("tenant", "kubeconfig", name, "-f", str(path))
            self.kubeconfigs[name] = Cluster(self.kubectl_path, path)
        return self.kubeconfigs[name]


def pod_manifest(name: str, *, image: str = BUSYBOX, command: str = "sleep 3600", **spec: Any) -> Document:
    """Return a small pod."""
    container = {"name": "main", "image": image, "command": ["sh", "-c", command]} | spec.pop("container", {})
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"containers": [container], "terminationGracePeriodSeconds": 2} | spec,
    }


REAL: dict[str, Any] = {"nodeSelector": {"vkgateway.io/pool": "real"}}
"""Fields that place a pod on the real node."""
