"""Demonstration on a real platform: two tenants, kubectl in each, and a guarantee that reclaims borrowed GPUs."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vkgateway.kinds.pods.translation.conditions import PREEMPTED
from vkgateway_platform.embedded.proxies import no_proxy

CHECKOUT = Path(__file__).resolve().parent.parent
VKGATEWAY = Path(sys.executable).with_name("vkgateway")
TENANTS = {
    "alpha": ("a100:guarantee=nvidia.com/gpu=16,limit=nvidia.com/gpu=16",),
    "beta": ("a100:guarantee=nvidia.com/gpu=8", "v100"),
}
"""The two tenants and their pools, in addition to the real pool."""
NAMESPACE = "demo"
REAL = "real"
POOL = "a100"
LENT, GANG = 16, 2
"""Number of pods of `lend` (one GPU each, so that each free GPU fits one) and of `gang` (4 GPUs each)."""
DEADLINE = "vkgateway\\.io/eviction-deadline"
NOTICE_COLUMNS = f"custom-columns=POD:.metadata.name,PHASE:.status.phase,DEADLINE:.metadata.annotations.{DEADLINE}"
REASON_COLUMNS = "custom-columns=POD:.metadata.name,PHASE:.status.phase,REASON:.status.reason"
RECLAIM_SECONDS = 180.0
"""Timeout of each step of the reclaim in seconds."""
CONFIGMAP_SECONDS = 180.0
"""Timeout in seconds for a changed ConfigMap to reach a pod."""


class DemoError(Exception):
    """A step of the demonstration failed."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Shell:
    """Shell of one user, which shows each command with the user's name in the prompt, and its output."""

    who: str
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, may_fail: bool = False) -> None:
        """Show and run a command.

        Raises:
            DemoError: the command failed without `may_fail`.
        """
        self.show(*command)
        code = subprocess.run(
            argv(command), env=self._env(), cwd=CHECKOUT, stdin=subprocess.DEVNULL, check=False
        ).returncode
        print(flush=True)
        if code and not may_fail:
            raise DemoError(f"`{shlex.join(command)}` failed with code {code}", code=code if code > 0 else 128 - code)

    def ask(self, *command: str) -> str:
        """Return the output of a command without showing it; empty if it fails."""
        result = subprocess.run(
            argv(command), env=self._env(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        return result.stdout.strip() if result.returncode == 0 else ""

    def show(self, *command: str) -> None:
        """Print the command with its prompt."""
        print(bold(f"{self.who}$ {shlex.join(command)}"), flush=True)

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.env}


def argv(command: Sequence[str]) -> list[str]:
    """Return the argument vector of a command; `vkgateway` is this checkout's program."""
    program, *rest = command
    return [str(VKGATEWAY) if program == "vkgateway" else program, *rest]


def main() -> int:
    """Run the demonstration and return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="the platform's data directory (default: as for every command)")
    parser.add_argument(
        "--kubeconfigs", type=Path, default=CHECKOUT / ".demo", help="directory of the tenants' kubeconfigs"
    )
    options = parser.parse_args()
    if options.data_dir:
        os.environ["VKGATEWAY_DATA_DIR"] = str(options.data_dir.expanduser().absolute())
    # The demonstration uses the platform of this machine, not the user's own cluster and gateway.
    for name in ("VKGATEWAY_KUBECONFIG", "VKGATEWAY_GATEWAY"):
        os.environ.pop(name, None)
    try:
        demonstrate(home=options.kubeconfigs.absolute())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        show_state()
        print("      `vkgateway status` shows the platform's state. You can repeat the demo.", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("\ndemo: interrupted. You can repeat it; `vkgateway down` stops the platform.", file=sys.stderr)
        return 130
    return 0


def demonstrate(*, home: Path) -> None:
    """Run all chapters; write the tenants' kubeconfigs to `home`."""
    started_at = time.monotonic()
    host = Shell("host")
    title("Start a platform on this machine")
    host.run("vkgateway", "up")
    status = read_status(host)
    if not status:
        raise DemoError("the platform is up, but `vkgateway status -o json` prints nothing")
    kubectl = host.ask("vkgateway", "binaries", "path", "kubectl")
    if not kubectl:
        raise DemoError("`vkgateway binaries path kubectl` finds no kubectl")
    # The commands below use the platform's kubectl, and no proxy.
    os.environ["PATH"] = os.pathsep.join((str(Path(kubectl).parent), os.environ.get("PATH", os.defpath)))
    proxy_exceptions = no_proxy(os.environ, address=status["address"])
    if proxy_exceptions:
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = proxy_exceptions
    compute = Shell("compute", {"KUBECONFIG": status["kubeconfig"]})
    compute.run("kubectl", "get", "nodes", "-L", "platform.vkgateway.io/pool")

    # While the real node is set up, its pool exists without a node.
    pools = compute.ask("kubectl", "get", "computecluster", "local", "-o", "jsonpath={.spec.pools[*].name}").split()
    tenants = create_tenants(host, home=home, real=REAL in pools)
    for tenant in tenants:
        run_workloads(tenant)
    real_node = read_status(host).get("realNode", "unknown")
    access_pod(tenants[0], real=real_node == "yes" and has_node(tenants[0], REAL), state=real_node)
    lend_and_reclaim(host, owner=tenants[0], borrower=tenants[1])
    title("Views of the tenants and of the platform team")
    for tenant in tenants:
        tenant.run("kubectl", "get", "nodes,pods", "-o", "wide")
    owned = "-l", "vkgateway.io/tenant"
    compute.run("kubectl", "get", "namespaces", *owned, "-L", "vkgateway.io/tenant")
    compute.run("kubectl", "get", "pods", "--all-namespaces", "-o", "wide", *owned)
    host.run("vkgateway", "tenant", "list")
    seconds = time.monotonic() - started_at
    print_next_steps(tenants, kubectl=Path(kubectl), proxy_exceptions=proxy_exceptions, seconds=seconds)
    if REAL in pools and read_status(host).get("realNode", "yes") != "yes":
        print("\nThe real node joins when its programs are built. To watch it, and to repeat the demo with it:\n")
        print("vkgateway logs -f node/setup\nvkgateway status\nmake demo")


def read_status(host: Shell) -> dict[str, Any]:
    """Return the state of the platform; empty if there is no answer or a problem."""
    return json.loads(host.ask("vkgateway", "status", "-o", "json") or "{}")  # type: ignore[no-any-return]


def create_tenants(host: Shell, *, home: Path, real: bool) -> list[Shell]:
    """Create the missing tenants, and return a shell for the admin of each."""
    title("Create two tenants, each with its own Kubernetes control plane")
    existing = {name.rpartition("/")[2] for name in host.ask("vkgateway", "tenant", "list", "-o", "name").split()}
    tenants = []
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, tenant_pools in TENANTS.items():
        if name in existing:
            host.run("vkgateway", "tenant", "describe", name)
        else:
            pools = [part for pool in (*tenant_pools, *([REAL] if real else [])) for part in ("--pool", pool)]
            host.run("vkgateway", "tenant", "create", name, *pools)
        kubeconfig = home / f"{name}.kubeconfig"
        host.run("vkgateway", "tenant", "kubeconfig", name, "-f", str(kubeconfig))
        tenant = Shell(name, {"KUBECONFIG": str(kubeconfig)})
        if not has_node(tenant, POOL):
            raise DemoError(f"tenant {name} already exists and has no node of pool {POOL}", code=4)
        tenants.append(tenant)
    return tenants


def has_node(tenant: Shell, pool: str) -> bool:
    """Return whether the tenant has a virtual node of the pool."""
    return bool(tenant.ask("kubectl", "get", "nodes", "-l", f"vkgateway.io/pool={pool}", "-o", "name"))


def run_workloads(tenant: Shell) -> None:
    """Run a Deployment, a Job and a pod without a controller."""
    title(f"Tenant {tenant.who}: a Deployment, a Job and a single pod on GPUs")
    tenant.run("kubectl", "get", "nodes")
    if not tenant.ask("kubectl", "get", "namespace", NAMESPACE, "-o", "name"):
        tenant.run("kubectl", "create", "namespace", NAMESPACE)
    tenant.run("kubectl", "config", "set-context", "--current", f"--namespace={NAMESPACE}")
    # Jobs and pods run once, so those of an earlier demonstration are replaced.
    earlier = ("job/train", "job/gang", "job/lend", "pod/gpu", "pod/shell", "--ignore-not-found")
    if tenant.ask("kubectl", "get", *earlier, "-o", "name"):
        tenant.run("kubectl", "delete", *earlier, "--timeout=60s")
    # One after the other: together, they could leave no room for the gang in the tenant's cells.
    tenant.run("kubectl", "apply", "-f", "examples/web.yaml")
    tenant.run("kubectl", "rollout", "status", "deployment/web", "--timeout=120s")
    tenant.run("kubectl", "apply", "-f", "examples/train.yaml")
    tenant.run("kubectl", "wait", "job/train", "--for=condition=Complete", "--timeout=120s")
    tenant.run("kubectl", "apply", "-f", "examples/gpu.yaml")
    tenant.run("kubectl", "wait", "pod/gpu", "--for=condition=Ready", "--timeout=120s")
    tenant.run("kubectl", "get", "deployments,jobs,pods")


def access_pod(tenant: Shell, *, real: bool, state: str) -> None:
    """Show logs and exec; on a real node also a ConfigMap update in a running pod. `state` is that of the real node."""
    if not real:
        title("Logs and exec in a pod on a hollow node")
        if state != "yes":
            print(f"The real node: {state}\n")
        tenant.run("kubectl", "logs", "gpu")
        # KWOK may refuse to run commands.
        tenant.run("kubectl", "exec", "gpu", "--", "id", may_fail=True)
        return
    title("Logs, exec and a ConfigMap update in a pod on the real node")
    tenant.run("kubectl", "apply", "-f", "examples/settings.yaml", "-f", "examples/shell.yaml")
    tenant.run("kubectl", "wait", "pod/shell", "--for=condition=Ready", "--timeout=120s")
    tenant.run("kubectl", "logs", "shell")
    tenant.run("kubectl", "exec", "shell", "--", "sh", "-c", "uname -sr; cat /settings/greeting; echo; ps")
    greeting = f"changed-at-{time.strftime('%H:%M:%S')}"
    change = json.dumps({"data": {"greeting": greeting}})
    tenant.run("kubectl", "patch", "configmap", "settings", "--type=merge", "-p", change)
    watch = f"until grep {greeting} /settings/greeting; do sleep 0.2; done"
    tenant.run("kubectl", "exec", "shell", "--", "timeout", f"{CONFIGMAP_SECONDS:.0f}", "sh", "-c", watch)


def lend_and_reclaim(host: Shell, *, owner: Shell, borrower: Shell) -> None:
    """Fill the pool with low-priority pods, then reclaim GPUs for a guaranteed gang."""
    title(f"Tenant {borrower.who} borrows idle GPUs, and the guarantee of {owner.who} reclaims them")
    for tenant, name in ((owner, "gang"), (borrower, "lend")):
        if tenant.ask("kubectl", "get", f"job/{name}", "--ignore-not-found", "-o", "name"):
            tenant.run("kubectl", "delete", f"job/{name}", "--timeout=60s")
    borrower.run("kubectl", "apply", "-f", "examples/lend.yaml")
    wait_for(lambda: count_running(borrower, "lend") >= LENT, failure="low-priority pods do not fill the pool")
    host.run("vkgateway", "top")

    started_at = time.monotonic()
    owner.run("kubectl", "apply", "-f", "examples/gang.yaml")
    wait_for(lambda: eviction_deadlines(borrower) != "", failure="no pod has an eviction deadline")
    print_step(started_at, f"pods of {borrower.who} have an eviction deadline")
    host.run("vkgateway", "queue")
    borrower.run("kubectl", "get", "pods", "-l", "job-name=lend", "-o", NOTICE_COLUMNS)
    wait_for(lambda: count_running(owner, "gang") == GANG, failure="the guaranteed gang does not run")
    print_step(started_at, f"the gang of {owner.who} runs")
    owner.run("kubectl", "get", "pods", "-l", "job-name=gang")
    # The status of the victims may follow that of the pods in their place.
    wait_for(lambda: PREEMPTED in pod_reasons(borrower), failure="no pod was evicted")
    borrower.run("kubectl", "get", "pods", "-l", "job-name=lend", "-o", REASON_COLUMNS)
    host.run("vkgateway", "top")
    owner.run("kubectl", "delete", "job/gang", "--timeout=60s")
    borrower.run("kubectl", "delete", "job/lend", "--timeout=60s")


def count_running(tenant: Shell, job: str) -> int:
    """Return the number of running pods of a job."""
    selectors = "-l", f"job-name={job}", "--field-selector=status.phase=Running"
    names = tenant.ask("kubectl", "get", "pods", *selectors, "-o", "name")
    return len(names.split())


def pod_reasons(tenant: Shell) -> str:
    """Return the reasons in the statuses of the tenant's pods."""
    return tenant.ask("kubectl", "get", "pods", "-o", "jsonpath={.items[*].status.reason}")


def eviction_deadlines(tenant: Shell) -> str:
    """Return the eviction deadlines of the tenant's pods."""
    return tenant.ask("kubectl", "get", "pods", "-o", f"jsonpath={{.items[*].metadata.annotations.{DEADLINE}}}")


def wait_for(is_reached: Callable[[], bool], *, failure: str) -> None:
    """Wait until a state is reached.

    Raises:
        DemoError: the state is not reached in time; the message is `failure`.
    """
    deadline = time.monotonic() + RECLAIM_SECONDS
    while not is_reached():
        if time.monotonic() > deadline:
            raise DemoError(f"{failure} after {RECLAIM_SECONDS:.0f} s")
        time.sleep(0.2)


def show_state() -> None:
    """Print the state of platform, pools and queue after a failure."""
    for command in (("status",), ("top",), ("queue",)):
        subprocess.run(argv(("vkgateway", *command)), stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)


def print_step(started_at: float, text: str) -> None:
    """Print a step of the reclaim with its time."""
    print(bold(f"+{time.monotonic() - started_at:.1f} s: {text}") + "\n", flush=True)


def print_next_steps(tenants: Sequence[Shell], *, kubectl: Path, proxy_exceptions: str | None, seconds: float) -> None:
    """Print the commands to continue by hand, with this machine's paths."""
    lines = [f"export PATH={VKGATEWAY.parent}:{kubectl.parent}:$PATH"]
    if data_dir := os.environ.get("VKGATEWAY_DATA_DIR"):
        lines.append(f"export VKGATEWAY_DATA_DIR={shlex.quote(data_dir)}")
    if proxy_exceptions:
        lines.append(f"export NO_PROXY={shlex.quote(proxy_exceptions)}")
    title(f"Done in {seconds:.0f} s. To continue by hand, run these commands")
    print("\n".join(lines))
    for tenant in tenants:
        print(f"\nexport KUBECONFIG={shlex.quote(tenant.env['KUBECONFIG'])}    # as admin of {tenant.who}")
        print("kubectl get pods -o wide")
    print("\nvkgateway ui              # the page of the platform: pools, queue, timeline")
    print(f"vkgateway ui --tenant {tenants[0].who}    # the page of a tenant")
    print("vkgateway status")
    print("vkgateway tenant create gamma --pool a100")
    print("\nTo stop the platform:\n")
    print("vkgateway down            # keeps the data for the next `vkgateway up`")
    print("vkgateway down --purge    # also deletes the data")


def title(text: str) -> None:
    """Print a heading."""
    print(bold(f"── {text} " + "─" * max(0, 100 - len(text))) + "\n", flush=True)


def bold(text: str) -> str:
    """Return the text in bold on a terminal, otherwise unchanged."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


if __name__ == "__main__":
    sys.exit(main())
