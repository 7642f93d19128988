"""Public controllers as local processes with a cluster's kubeconfig.

Their objects are real, their pods run on hollow nodes.
"""

from __future__ import annotations

import asyncio
import base64
import contextlib
import json
import os
import socket
import subprocess
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import yaml

from operators import kueue, published
from operators.programs import JOBSET, KOORDINATOR, KUBERAY, KUEUE, PROMETHEUS_OPERATOR, VOLCANO
from operators.published import PublishedPrograms
from tests.e2e.cluster import Cluster, Document, eventually
from tests.support.ports import free_port
from vkgateway.planes.pki import Authority


def program_folder(wanted: PublishedPrograms) -> Path:
    """Return the directory of a program and its manifests. The first call on a machine builds it."""
    return asyncio.run(published.provide_programs(wanted, report=print))


@contextlib.contextmanager
def run_kuberay(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run KubeRay's operator in a tenant, as released, without webhooks."""
    folder_of_program = program_folder(KUBERAY)
    _install(cluster, folder_of_program / "crds", "rayclusters")
    off = ("--enable-leader-election=false", "--metrics-addr=0", "--health-probe-bind-address=0")
    with _run_controller([str(folder_of_program / "ray-operator"), *off], cluster, folder):
        yield


@contextlib.contextmanager
def run_jobset(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run JobSet's controller in a tenant, with webhooks that the API server reaches on this machine."""
    folder_of_program = program_folder(JOBSET)
    _install(cluster, folder_of_program / "crds", "jobsets")
    authority, port = Authority.create("jobset"), free_port()
    authority.issue("jobset", ips=["127.0.0.1"], server=True).write(
        folder, "tls"
    )  # tls.crt and tls.key, as it expects them
    settings = {
        "apiVersion": "config.jobset.x-k8s.io/v1alpha1",
        "kind": "Configuration",
        "leaderElection": {"leaderElect": False},
        "internalCertManagement": {"enable": False},
        "webhook": {"host": "127.0.0.1", "port": port, "certDir": str(folder)},
        "metrics": {"bindAddress": "0"},
        "health": {"healthProbeBindAddress": "0"},
    }
    (folder / "settings.yaml").write_text(yaml.safe_dump(settings))
    with _run_controller([str(folder_of_program / "jobset"), f"--config={folder / 'settings.yaml'}"], cluster, folder):
        eventually(lambda: _is_listening(port), what="JobSet's webhooks")
        hooks = list(yaml.safe_load_all((folder_of_program / "webhooks.yaml").read_text()))
        cluster.apply(*(_with_url(hook, f"https://127.0.0.1:{port}", authority.cert_pem) for hook in hooks if hook))
        yield


@contextlib.contextmanager
def run_kueue(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run Kueue's controller in a cluster, as released, without webhooks for Kueue's objects and for pods."""
    program = program_folder(KUEUE)
    webhooks, health = free_port(), free_port()
    for definition in kueue.read_definitions(program, webhooks=webhooks):
        cluster.kubectl("apply", "--server-side", "-f", "-", stdin=json.dumps(definition))
    cluster.apply(*kueue.expected_objects())
    eventually(lambda: cluster.try_kubectl("get", "clusterqueues").code == 0, what="clusterqueues served")
    gates = ("SchedulingEquivalenceHashing=true",)
    argv = kueue.prepare_controller(program, folder, webhooks=webhooks, health=health, gates=gates, ready_seconds=60)
    secret = ("secret", kueue.SECRET, "-n", kueue.NAMESPACE)
    with _run_controller([*argv, "--zap-log-level=5"], cluster, folder):
        eventually(lambda: cluster.get(*secret).get("data"), what="Kueue's certificate")
        kueue.mount_certificate(folder, cluster.get(*secret)["data"])
        eventually(lambda: _is_listening(webhooks), what="Kueue runs")
        yield


@contextlib.contextmanager
def run_prometheus_operator(cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run the Prometheus operator in a cluster. It writes the Service `kube-system/kubelet`."""
    program = program_folder(PROMETHEUS_OPERATOR)
    _install(cluster, program / "crds", "scrapeconfigs.monitoring.coreos.com")
    config = json.loads(cluster.kubectl("config", "view", "--raw", "-o", "json"))
    server, user = config["clusters"][0]["cluster"], config["users"][0]["user"]
    for name, data in (
        ("ca", server["certificate-authority-data"]),
        ("cert", user["client-certificate-data"]),
        ("key", user["client-key-data"]),
    ):
        (folder / name).write_bytes(base64.b64decode(data))
    argv = [
        str(program / "prometheus-operator"),
        f"--apiserver={server['server']}",
        *(f"--{name}-file={folder / name}" for name in ("ca", "cert", "key")),
        "--kubelet-service=kube-system/kubelet",
        f"--web.listen-address=127.0.0.1:{free_port()}",
    ]
    with _run_controller(argv, cluster, folder):
        yield


VOLCANO_CONFIGURATION = Path("deploy/volcano/scheduler-configmap.yaml")


@contextlib.contextmanager
def run_volcano(cluster: Cluster, folder: Path, *, configuration: Path = VOLCANO_CONFIGURATION) -> Iterator[None]:
    """Run Volcano's scheduler and controllers in a cluster, with a configuration, and without its webhooks."""
    program = program_folder(VOLCANO)
    _install(cluster, program / "crds", "queues.scheduling.volcano.sh")
    _install(cluster, program / "crds-jobflow", "jobflows")
    cluster.apply({"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "volcano-system"}})
    config_map = yaml.safe_load(configuration.read_text())
    cluster.apply(config_map)
    # The scheduler reads its configuration again after any change in this folder.
    mounted, logs = folder / "configuration", folder / "controllers"
    mounted.mkdir()
    logs.mkdir()
    for name, text in config_map["data"].items():
        (mounted / name).write_text(text)
    common = (
        f"--kubeconfig={cluster.kubeconfig}",
        "--leader-elect=false",
        "--kube-api-qps=2000",
        "--kube-api-burst=4000",
    )
    ports = (f"--listen-address=127.0.0.1:{free_port()}", f"--healthz-address=127.0.0.1:{free_port()}")
    scheduler = [
        str(program / "vc-scheduler"),
        f"--scheduler-conf={mounted / 'volcano-scheduler.conf'}",
        "--cache-dumper=false",
        *common,
        *ports,
    ]
    controllers = [str(program / "vc-controller-manager"), f"--healthz-address=127.0.0.1:{free_port()}", *common]
    with _run_controller(controllers, cluster, logs), _run_controller(scheduler, cluster, folder):
        eventually(
            lambda: (cluster.find("queues.scheduling.volcano.sh", "default") or {}).get("status", {}).get("state"),
            what="Volcano's default queue is open",
        )
        yield


_SCHEDULER_API = "kubescheduler.config.k8s.io/v1"


@contextlib.contextmanager
def run_kube_scheduler(cluster: Cluster, folder: Path, *, program: str, name: str) -> Iterator[None]:
    """Run a second kube-scheduler in a cluster, for pods that name it."""
    argv = [program, f"--config={_scheduler_settings(cluster, folder, schedulerName=name)}", *_own_port(folder)]
    with _run_controller(argv, cluster, folder):
        yield


@contextlib.contextmanager
def run_koordinator(cluster: Cluster, folder: Path, *, name: str) -> Iterator[None]:
    """Run Koordinator's scheduler in a cluster, for pods that name it. Of its plugins, it uses the one for gangs, and
    the one that the others require.

    In a cluster with few events, its check before the queue would keep a gang waiting whose last pod was just created,
    so it checks gangs in the queue only. For the same reason, it does not count the attempts to place a gang: all pods
    of the gang would have to be tried again before it starts. A pod that it tries while capacity becomes free would
    wait for the next event, or five minutes: here ten seconds.

    Its kinds are deleted at the end: its NodeResourceTopology has another version than the one that the gateway reads.
    """
    program = program_folder(KOORDINATOR)
    crds = program / "crds"
    _install(cluster, crds, "podgroups.scheduling.sigs.k8s.io")
    plugins = {
        "queueSort": _plugins("Coscheduling", alone=True),
        "preFilter": _plugins("Reservation", "Coscheduling"),
        "filter": _plugins("Reservation"),
        "postFilter": _plugins("Reservation", "Coscheduling", "DefaultPreemption", alone=True),
        "preScore": _plugins("Reservation"),
        "reserve": _plugins("Reservation", "Coscheduling"),
        "permit": _plugins("Coscheduling"),
        "preBind": _plugins("Reservation", "DefaultPreBind"),
        "bind": _plugins("Reservation", "DefaultBinder", alone=True),
        "postBind": _plugins("Coscheduling"),
    }
    arguments = {"apiVersion": _SCHEDULER_API, "kind": "CoschedulingArgs", "skipCheckScheduleCycle": True}
    settings = _scheduler_settings(
        cluster,
        folder,
        schedulerName=name,
        plugins=plugins,
        pluginConfig=[{"name": "Coscheduling", "args": arguments}],
    )
    again = "--pod-max-in-unschedulable-pods-duration=10s"
    argv = [str(program / "koord-scheduler"), f"--config={settings}", again, "--port=0", *_own_port(folder)]
    try:
        with _run_controller(argv, cluster, folder):
            yield
    finally:
        cluster.kubectl("delete", "--ignore-not-found", "-f", str(crds))


def _plugins(*names: str, alone: bool = False) -> Document:
    """Return the plugins of an extension point, in addition to the default ones or `alone`."""
    enabled = {"enabled": [{"name": name} for name in names]}
    return {"disabled": [{"name": "*"}], **enabled} if alone else enabled


def _scheduler_settings(cluster: Cluster, folder: Path, **profile: Any) -> Path:
    settings = {
        "apiVersion": _SCHEDULER_API,
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {"leaderElect": False},
        "clientConnection": {"kubeconfig": str(cluster.kubeconfig)},
        "profiles": [profile],
    }
    path = folder / "settings.yaml"
    path.write_text(yaml.safe_dump(settings))
    return path


def _own_port(folder: Path) -> tuple[str, ...]:
    return (f"--secure-port={free_port()}", "--bind-address=127.0.0.1", f"--cert-dir={folder / 'certificates'}")


def _install(cluster: Cluster, crds: Path, plural: str) -> None:
    cluster.kubectl("apply", "--server-side", "-f", str(crds))
    eventually(lambda: cluster.try_kubectl("get", plural).code == 0, what=f"{plural} served")


@contextlib.contextmanager
def _run_controller(argv: Sequence[str], cluster: Cluster, folder: Path) -> Iterator[None]:
    """Run a controller until the block ends. If it exits before, fail with its output."""
    log = folder / "log"
    with log.open("w") as output:
        process = subprocess.Popen(
            argv, env=os.environ | {"KUBECONFIG": str(cluster.kubeconfig)}, stdout=output, stderr=output
        )
    try:
        yield
    finally:
        ended = process.poll()
        process.terminate()
        process.wait(20)
        assert ended is None, f"{argv[0]} ended with {ended}:\n{log.read_text()[-4000:]}"


def _with_url(hooks: Document, url: str, authority: bytes) -> Document:
    """Return a webhook configuration that calls a local server instead of a Service."""
    for hook in hooks["webhooks"]:
        path = hook["clientConfig"].pop("service")["path"]
        hook["clientConfig"] |= {"url": url + path, "caBundle": base64.b64encode(authority).decode()}
    return hooks


def _is_listening(port: int) -> bool:
    with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", port), 1):
        return True
    return False
