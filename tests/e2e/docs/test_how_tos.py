"""The how-tos, run word for word: each page by a user whose home has a platform with the tenant alpha."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

import pytest

from tests.e2e.cluster import Platform, new_data_dir
from tests.e2e.conftest import DOWN_TIMEOUT, UP_TIMEOUT
from tests.e2e.pages import read_blocks, run_page
from vkgateway_platform.binaries.cache import Cache

ROOT: Final = Path(__file__).parents[3]
HOW_TOS: Final = ROOT / "docs" / "how-to"

_WITH_HELM: Final = "an installation with Helm, which the lane chart tries"
_NEEDS_SERVERS: Final = "needs a server of another project at an address of the reader"


@dataclass(frozen=True)
class HowTo:
    """What a page takes for granted, and the blocks that are not run here: part of the block, and the reason."""

    before: str = ""
    left_out: Mapping[str, str] = field(default_factory=dict)


_COMPUTE: Final = "~/.local/share/vkgateway/compute.kubeconfig"
_RESEARCH: Final = """
kubectl --kubeconfig alpha.kubeconfig create namespace research --dry-run=client -o yaml |
    kubectl --kubeconfig alpha.kubeconfig apply -f -
"""
_TRAIN: Final = """
kubectl apply -f - <<END
apiVersion: v1
kind: Pod
metadata: {name: train-0, namespace: %s}
spec:
  nodeSelector: {vkgateway.io/pool: a100}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "train:1", resources: {limits: {nvidia.com/gpu: 8}}}
END
"""
_WAITING: Final = """
vkgateway tenant create gamma --pool a100:guarantee=nvidia.com/gpu=24
vkgateway tenant kubeconfig gamma -f gamma.kubeconfig
pods() {  # GANG PODS
    for index in $(seq 0 $(($2 - 1))); do cat <<END
apiVersion: v1
kind: Pod
metadata: {name: $1-$index, annotations: {vkgateway.io/gang: $1, vkgateway.io/gang-size: "$2"}}
spec:
  nodeSelector: {vkgateway.io/pool: a100}
  terminationGracePeriodSeconds: 1
  containers:
  - {name: main, image: "train:1", resources: {limits: {nvidia.com/gpu: 8}}}
---
END
    done
}
pods serve 3 | kubectl --kubeconfig gamma.kubeconfig apply -f -
kubectl --kubeconfig gamma.kubeconfig wait pods --all --for=condition=Ready --timeout=2m
export KUBECONFIG=$PWD/alpha.kubeconfig
kubectl config set-context --current --namespace research
(pods train 2; pods huge 5; cat) <<END | kubectl apply -f -
apiVersion: batch/v1
kind: Job
metadata: {name: grows}
spec:
  parallelism: 6
  completions: 6
  template:
    metadata:
      annotations: {vkgateway.io/gang: job, vkgateway.io/gang-min: "2", vkgateway.io/gang-elastic-max: "6"}
    spec:
      restartPolicy: Never
      terminationGracePeriodSeconds: 1
      nodeSelector: {vkgateway.io/pool: v100}
      containers:
      - {name: main, image: "train:1", resources: {limits: {nvidia.com/gpu: 4}}}
END
kubectl wait job/grows --for=jsonpath='{.status.active}'=6 --timeout=1m
for _ in $(seq 100); do vkgateway queue --kubeconfig alpha.kubeconfig | grep grows && break; sleep 1; done
kubectl wait pods -l '!job-name' --timeout=2m \\
    --for=jsonpath='{.status.conditions[?(@.type=="vkgateway.io/Admitted")].reason}'
kubectl config set-context --current --namespace default
"""

PAGES: Final[dict[str, HowTo]] = {
    "first-week": HowTo(),
    "kubectl-plugin": HowTo(
        before="export KUBECONFIG=$PWD/alpha.kubeconfig" + _RESEARCH + _TRAIN % "research",
        left_out={
            "pipx install": "installs into the home of the reader",
            "krew install": "needs krew",
            "--context management": "needs a kubeconfig with both clusters",
        },
    ),
    "find-out-why-a-pod-waits": HowTo(before=_RESEARCH + _WAITING),
    "live-with-evictions": HowTo(before="export KUBECONFIG=$PWD/alpha.kubeconfig" + _TRAIN % "default"),
    "scrape-a-tenant": HowTo(before="export KUBECONFIG=$PWD/alpha.kubeconfig"),
    "budgets": HowTo(),
    "free-datastore-space": HowTo(before=f"ln -sf {_COMPUTE} COMPUTE"),
    "shorten-starts": HowTo(
        before=f"""
export KUBECONFIG={_COMPUTE}
kubectl patch computecluster local --type json --patch '[{{"op": "add", "path": "/spec/pools/0/prePull", "value":
    {{"images": ["registry.example.org/train:2.1", "registry.example.org/serve:1"]}}}}]'
kubectl wait computecluster/local --timeout=2m \\
    --for='jsonpath={{.status.pools[?(@.name=="a100")].prePull.readyNodes}}=4'
"""
    ),
    "attach-a-compute-cluster": HowTo(
        before=f"cp {_COMPUTE} berlin.kubeconfig",
        left_out={"lean-pods.yaml": "the embedded platform has applied it, and the second command is for old releases"},
    ),
    "open-the-page": HowTo(
        before=_RESEARCH
        + "kubectl --kubeconfig alpha.kubeconfig create clusterrolebinding jane --clusterrole view --user jane",
        left_out={
            "--gateway-kubeconfig": "forwards a port until the reader ends it; the lane kubernetes tries it",
            "traefik": _NEEDS_SERVERS,
            "oauth2-proxy --provider": _NEEDS_SERVERS,
            "oauth2-proxy --alpha-config": _NEEDS_SERVERS,
        },
    ),
    "monitor": HowTo(
        left_out={
            "kubectl label prometheusrule": "needs the Prometheus operator; the lane monitoring loads these rules",
            "promtool": "needs Prometheus; the lane monitoring loads these rules",
        }
    ),
    "simulate": HowTo(
        before="""
cp ~/.local/share/vkgateway/arbiter/decisions.jsonl decisions.jsonl
cat > other.yaml <<END
- name: alpha
  pools:
  - {name: a100, guarantee: {nvidia.com/gpu: 8}}
- name: gamma
  pools:
  - {name: a100, guarantee: {nvidia.com/gpu: 24}}
END
""",
        left_out={"openb_pod_list_default.csv": "needs the data set"},
    ),
    "write-a-template": HowTo(before="vkgateway tenant delete alpha --yes"),
    "uninstall": HowTo(left_out={"kubectl delete tenants": _WITH_HELM, "helm uninstall": _WITH_HELM}),
}
"""Pages in the order in which they run: the last ones end what the others use."""
NOT_HERE: Final = {
    "alerts": "answers alerts, which the lane monitoring fires with real faults",
    "build-an-image": "the lane chart builds the image",
    "etcd": "sets up an etcd of the reader, which the lane chart tries",
    "install-on-a-cluster": _WITH_HELM,
    "let-another-scheduler-run-a-pool": "the lane external runs such pools",
    "let-kueue-schedule-a-pool": "the lane kueue installs it",
    "let-volcano-schedule-a-pool": "the lane volcano installs it",
    "run-a-gateway": "creates users and systemd services of the machine",
    "upgrade": _WITH_HELM,
}


def test_every_page_with_commands_is_run_or_says_why_not() -> None:
    with_commands = {page.stem for page in HOW_TOS.glob("*.md") if read_blocks(page.read_text())}

    assert with_commands == PAGES.keys() | NOT_HERE.keys()


@pytest.fixture(scope="module")
def user() -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield a folder like a checkout, with the kubeconfig of alpha, and the variables of a user with a platform."""
    home = new_data_dir()
    data_dir = home / ".local" / "share" / "vkgateway"
    data_dir.mkdir(parents=True)
    platform = Platform(data_dir)
    folder = home / "checkout"
    folder.mkdir()
    for entry in ROOT.iterdir():
        if entry.name not in ("build", ".git"):
            (folder / entry.name).symlink_to(entry)
    platform.vkgateway("up", timeout=UP_TIMEOUT)
    kubectl = Path(platform.vkgateway("binaries", "path", "kubectl").strip()).parent
    platform.vkgateway("tenant", "create", "alpha", "--pool", "a100:guarantee=nvidia.com/gpu=8", "--pool", "v100")
    platform.vkgateway("tenant", "kubeconfig", "alpha", "-f", str(folder / "alpha.kubeconfig"))
    env = {
        "HOME": str(home),
        "XDG_CACHE_HOME": str(Cache.default_root().parent),
        "PATH": os.pathsep.join((str(Path(sys.executable).parent), str(kubectl), os.environ["PATH"])),
        "BROWSER": "true",
    }
    yield folder, env
    platform.try_vkgateway("down", "--purge", "--yes", timeout=DOWN_TIMEOUT)
    shutil.rmtree(home, ignore_errors=True)


@pytest.fixture
def idle_user(user: tuple[Path, dict[str, str]]) -> Iterator[tuple[Path, dict[str, str]]]:
    """Yield the user, and delete the pods of alpha afterwards."""
    yield user
    folder, env = user
    for namespace in ("default", "research"):
        delete = ("kubectl", "--kubeconfig", "alpha.kubeconfig", "delete", "jobs,pods", "--all", "-n", namespace)
        subprocess.run(delete, cwd=folder, env=os.environ | env, timeout=DOWN_TIMEOUT, capture_output=True, check=False)


@pytest.mark.parametrize("page", PAGES)
def test_page_matches_what_happens(idle_user: tuple[Path, dict[str, str]], page: str) -> None:
    folder, env = idle_user
    how_to = PAGES[page]
    run_page(
        HOW_TOS / f"{page}.md",
        folder=folder,
        env=env,
        timeout=UP_TIMEOUT,
        before=how_to.before,
        left_out=how_to.left_out,
    )
