"""The demonstration: a platform, two tenants, kubectl at work in each. Every line of output is the running system's."""

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

from vkgateway.local.proxies import no_proxy

CHECKOUT = Path(__file__).resolve().parent.parent
VKGATEWAY = Path(sys.executable).with_name("vkgateway")
TENANTS = {
    "alpha": ("a100:guarantee=nvidia.com/gpu=16,limit=nvidia.com/gpu=16",),
    "beta": ("a100:guarantee=nvidia.com/gpu=8", "v100"),
}
"""The two tenants, and their pools beside the real one."""
NAMESPACE = "demo"
REAL = "real"
POOL = "a100"
LENT, GANG = 16, 2
"""Pods of `lend` (a GPU each, so that no hole is too small for one), and pods of `gang` (4 GPUs each)."""
DEADLINE = "vkgateway\\.io/eviction-deadline"
NOTICE_COLUMNS = f"custom-columns=POD:.metadata.name,PHASE:.status.phase,GOES AT:.metadata.annotations.{DEADLINE}"
REASON_COLUMNS = "custom-columns=POD:.metadata.name,PHASE:.status.phase,REASON:.status.reason"
RECLAIM_SECONDS = 60.0
"""Seconds for each step of a reclaim."""
SEEN_WITHIN = 60.0
"""Seconds for a changed ConfigMap to reach a pod."""


class DemoError(Exception):
    """A command did not do what it should."""

    def __init__(self, message: str, *, code: int = 1) -> None:
        super().__init__(message)
        self.code = code


@dataclass(frozen=True, slots=True)
class Shell:
    """Runs commands and shows each before its output, with the name of who runs it in the prompt."""

    who: str
    env: dict[str, str] = field(default_factory=dict)

    def run(self, *command: str, may_fail: bool = False) -> None:
        """Run a command for all to see.

        Raises:
            DemoError: it ended with another code than 0, and that was not to be expected.
        """
        self.show(*command)
        code = subprocess.run(
            argv(command), env=self._env(), cwd=CHECKOUT, stdin=subprocess.DEVNULL, check=False
        ).returncode
        print(flush=True)
        if code and not may_fail:
            raise DemoError(f"`{shlex.join(command)}` ended with code {code}", code=code if code > 0 else 128 - code)

    def ask(self, *command: str) -> str:
        """What a command tells, unseen; empty if it fails."""
        asked = subprocess.run(
            argv(command), env=self._env(), capture_output=True, text=True, stdin=subprocess.DEVNULL, check=False
        )
        return asked.stdout.strip() if asked.returncode == 0 else ""

    def show(self, *command: str) -> None:
        """Print the command as it could be typed."""
        print(bold(f"{self.who}$ {shlex.join(command)}"), flush=True)

    def _env(self) -> dict[str, str]:
        return {**os.environ, **self.env}


def argv(command: Sequence[str]) -> list[str]:
    """What is executed for a command: `vkgateway` is this checkout's."""
    program, *rest = command
    return [str(VKGATEWAY) if program == "vkgateway" else program, *rest]


def main() -> int:
    """Run all of it; the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--data-dir", type=Path, help="the platform's data directory (default: as for every command)")
    parser.add_argument("--kubeconfigs", type=Path, default=CHECKOUT / ".demo", help="where the tenants' are written")
    options = parser.parse_args()
    if options.data_dir:
        os.environ["VKGATEWAY_DATA_DIR"] = str(options.data_dir.expanduser().absolute())
    # The demonstration shows the platform of this machine, whatever cluster and gateway are the user's own.
    for name in ("VKGATEWAY_KUBECONFIG", "VKGATEWAY_GATEWAY"):
        os.environ.pop(name, None)
    try:
        demonstrate(home=options.kubeconfigs.absolute())
    except DemoError as error:
        print(f"demo: {error}", file=sys.stderr)
        show_state()
        print("      `vkgateway status` tells how the platform is; the demo may be repeated.", file=sys.stderr)
        return error.code
    except KeyboardInterrupt:
        print("\ndemo: interrupted; it may be repeated, `vkgateway down` takes the platform down", file=sys.stderr)
        return 130
    return 0


def demonstrate(*, home: Path) -> None:
    """All chapters in order; the tenants' kubeconfigs go to `home`."""
    began = time.monotonic()
    host = Shell("host")
    title("A platform on this machine")
    host.run("vkgateway", "up")
    status = json.loads(host.ask("vkgateway", "status", "-o", "json") or "{}")
    if not status:
        raise DemoError("the platform is up, but `vkgateway status -o json` tells nothing")
    kubectl = host.ask("vkgateway", "binaries", "path", "kubectl")
    if not kubectl:
        raise DemoError("`vkgateway binaries path kubectl` finds none")
    # Whoever runs a kubectl below gets the platform's own.
    os.environ["PATH"] = os.pathsep.join((str(Path(kubectl).parent), os.environ.get("PATH", os.defpath)))
    # And reaches the platform straight, whatever proxy leads to the world.
    past_proxy = no_proxy(os.environ, address=status["address"])
    if past_proxy:
        os.environ["NO_PROXY"] = os.environ["no_proxy"] = past_proxy
    real = status["realNode"] == "yes"
    compute = Shell("compute", {"KUBECONFIG": status["kubeconfig"]})
    compute.run("kubectl", "get", "nodes", "-L", "platform.vkgateway.io/pool")

    tenants = board(host, home=home, real=real)
    for tenant in tenants:
        work(tenant)
    inside(tenants[0], real=real and has_node(tenants[0], REAL))
    lend_and_reclaim(host, owner=tenants[0], guest=tenants[1])
    title("Who sees what")
    for tenant in tenants:
        tenant.run("kubectl", "get", "nodes,pods", "-o", "wide")
    owned = "-l", "vkgateway.io/tenant"
    compute.run("kubectl", "get", "namespaces", *owned, "-L", "vkgateway.io/tenant")
    compute.run("kubectl", "get", "pods", "--all-namespaces", "-o", "wide", *owned)
    host.run("vkgateway", "tenant", "list")
    say_how_to_go_on(tenants, kubectl=Path(kubectl), past_proxy=past_proxy, seconds=time.monotonic() - began)


def board(host: Shell, *, home: Path, real: bool) -> list[Shell]:
    """Make the tenants that are not there yet, and a shell for the admin of each."""
    title("Two tenants, each with a Kubernetes of its own")
    there = {name.rpartition("/")[2] for name in host.ask("vkgateway", "tenant", "list", "-o", "name").split()}
    tenants = []
    home.mkdir(mode=0o700, parents=True, exist_ok=True)
    for name, own in TENANTS.items():
        if name in there:
            host.run("vkgateway", "tenant", "describe", name)
        else:
            pools = [part for pool in (*own, *([REAL] if real else [])) for part in ("--pool", pool)]
            host.run("vkgateway", "tenant", "create", name, *pools)
        kubeconfig = home / f"{name}.kubeconfig"
        host.run("vkgateway", "tenant", "kubeconfig", name, "-f", str(kubeconfig))
        tenant = Shell(name, {"KUBECONFIG": str(kubeconfig)})
        if not has_node(tenant, POOL):
            raise DemoError(f"the tenant {name} was there before and has no node of pool {POOL}", code=4)
        tenants.append(tenant)
    return tenants


def has_node(tenant: Shell, pool: str) -> bool:
    """Whether the tenant has a virtual node of the pool."""
    return bool(tenant.ask("kubectl", "get", "nodes", "-l", f"vkgateway.io/pool={pool}", "-o", "name"))


def work(tenant: Shell) -> None:
    """A Deployment, a Job and a bare pod, from start to end."""
    title(f"{tenant.who} works: a Deployment, a Job and a bare pod, on GPUs")
    tenant.run("kubectl", "get", "nodes")
    if not tenant.ask("kubectl", "get", "namespace", NAMESPACE, "-o", "name"):
        tenant.run("kubectl", "create", "namespace", NAMESPACE)
    tenant.run("kubectl", "config", "set-context", "--current", f"--namespace={NAMESPACE}")
    # A Job and a pod run once: those of an earlier demonstration make room for new ones.
    if tenant.ask("kubectl", "get", "job/train", "pod/gpu", "pod/shell", "--ignore-not-found", "-o", "name"):
        tenant.run("kubectl", "delete", "job/train", "pod/gpu", "pod/shell", "--ignore-not-found", "--timeout=60s")
    for example in ("web", "train", "gpu"):
        tenant.run("kubectl", "apply", "-f", f"examples/{example}.yaml")
    tenant.run("kubectl", "rollout", "status", "deployment/web", "--timeout=120s")
    tenant.run("kubectl", "wait", "pod/gpu", "--for=condition=Ready", "--timeout=120s")
    tenant.run("kubectl", "wait", "job/train", "--for=condition=Complete", "--timeout=120s")
    tenant.run("kubectl", "get", "deployments,jobs,pods")


def inside(tenant: Shell, *, real: bool) -> None:
    """Logs and exec; with a real node also a ConfigMap that changes under a running pod."""
    if not real:
        title("Logs and exec, from a pod on a hollow node: there is no real one here")
        tenant.run("kubectl", "logs", "gpu")
        # Where KWOK may not run commands, the refusal is what there is to see.
        tenant.run("kubectl", "exec", "gpu", "--", "id", may_fail=True)
        return
    title("Logs, exec and a change of settings, in a pod on the real node")
    tenant.run("kubectl", "apply", "-f", "examples/settings.yaml", "-f", "examples/shell.yaml")
    tenant.run("kubectl", "wait", "pod/shell", "--for=condition=Ready", "--timeout=120s")
    tenant.run("kubectl", "logs", "shell")
    tenant.run("kubectl", "exec", "shell", "--", "sh", "-c", "uname -sr; cat /settings/greeting; echo; ps")
    greeting = f"changed-at-{time.strftime('%H:%M:%S')}"
    change = json.dumps({"data": {"greeting": greeting}})
    tenant.run("kubectl", "patch", "configmap", "settings", "--type=merge", "-p", change)
    watch = f"until grep {greeting} /settings/greeting; do sleep 0.2; done"
    tenant.run("kubectl", "exec", "shell", "--", "timeout", f"{SEEN_WITHIN:.0f}", "sh", "-c", watch)


def lend_and_reclaim(host: Shell, *, owner: Shell, guest: Shell) -> None:
    """Low-priority work fills the pool; a guaranteed gang calls its GPUs in, and is told step by step."""
    title(f"{guest.who} borrows idle GPUs, and the guarantee of {owner.who} reclaims them")
    for tenant, name in ((owner, "gang"), (guest, "lend")):
        if tenant.ask("kubectl", "get", f"job/{name}", "--ignore-not-found", "-o", "name"):
            tenant.run("kubectl", "delete", f"job/{name}", "--timeout=60s")
    guest.run("kubectl", "apply", "-f", "examples/lend.yaml")
    wait_for(lambda: running(guest, "lend") >= LENT, what="the pool is not filled with low-priority work")
    host.run("vkgateway", "top")

    began = time.monotonic()
    owner.run("kubectl", "apply", "-f", "examples/gang.yaml")
    wait_for(lambda: notices(guest) != "", what="no pod has an eviction deadline")
    tell(began, f"pods of {guest.who} have an eviction deadline")
    host.run("vkgateway", "queue")
    guest.run("kubectl", "get", "pods", "-l", "job-name=lend", "-o", NOTICE_COLUMNS)
    wait_for(lambda: running(owner, "gang") == GANG, what="the guaranteed gang does not run")
    tell(began, f"the gang of {owner.who} runs")
    owner.run("kubectl", "get", "pods", "-l", "job-name=gang")
    guest.run("kubectl", "get", "pods", "-l", "job-name=lend", "-o", REASON_COLUMNS)
    host.run("vkgateway", "top")
    owner.run("kubectl", "delete", "job/gang", "--timeout=60s")
    guest.run("kubectl", "delete", "job/lend", "--timeout=60s")


def running(tenant: Shell, job: str) -> int:
    """How many pods of a job are running."""
    chosen = "-l", f"job-name={job}", "--field-selector=status.phase=Running"
    names = tenant.ask("kubectl", "get", "pods", *chosen, "-o", "name")
    return len(names.split())


def notices(tenant: Shell) -> str:
    """The deadlines that pods were told."""
    return tenant.ask("kubectl", "get", "pods", "-o", f"jsonpath={{.items[*].metadata.annotations.{DEADLINE}}}")


def wait_for(look: Callable[[], bool], *, what: str) -> None:
    """Look until it is so.

    Raises:
        DemoError: it was not so in time.
    """
    deadline = time.monotonic() + RECLAIM_SECONDS
    while not look():
        if time.monotonic() > deadline:
            raise DemoError(f"{what}, after {RECLAIM_SECONDS:.0f} s")
        time.sleep(0.2)


def show_state() -> None:
    """What stands where and what waits, for whoever has to find out why a step failed."""
    for command in (("status",), ("top",), ("queue",)):
        subprocess.run(argv(("vkgateway", *command)), stdout=sys.stderr, stdin=subprocess.DEVNULL, check=False)


def tell(began: float, what: str) -> None:
    """A step of the reclaim, with its time."""
    print(bold(f"+{time.monotonic() - began:.1f} s: {what}") + "\n", flush=True)


def say_how_to_go_on(tenants: Sequence[Shell], *, kubectl: Path, past_proxy: str | None, seconds: float) -> None:
    """The lines with which to go on by hand, with this machine's paths."""
    lines = [f"export PATH={VKGATEWAY.parent}:{kubectl.parent}:$PATH"]
    if data_dir := os.environ.get("VKGATEWAY_DATA_DIR"):
        lines.append(f"export VKGATEWAY_DATA_DIR={shlex.quote(data_dir)}")
    if past_proxy:
        lines.append(f"export NO_PROXY={shlex.quote(past_proxy)}")
    title(f"That took {seconds:.0f} s. To go on by hand")
    print("\n".join(lines))
    for tenant in tenants:
        print(f"\nexport KUBECONFIG={shlex.quote(tenant.env['KUBECONFIG'])}    # as admin of {tenant.who}")
        print("kubectl get pods -o wide")
    print("\nvkgateway status")
    print("vkgateway tenant create gamma --pool a100")
    print("\nTo take it down\n")
    print("vkgateway down            # the data stays for the next `vkgateway up`")
    print("vkgateway down --purge    # removes the data too")


def title(text: str) -> None:
    """A heading."""
    print(bold(f"── {text} " + "─" * max(0, 100 - len(text))) + "\n", flush=True)


def bold(text: str) -> str:
    """Bold on a terminal."""
    return f"\033[1m{text}\033[0m" if sys.stdout.isatty() else text


if __name__ == "__main__":
    sys.exit(main())
