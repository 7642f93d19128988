"""Tenant pods that are created one after the other, and the compute pods that a watch sees for each."""

from __future__ import annotations

import contextlib
import http.client
import json
import subprocess
import threading
import time
import uuid
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from tests.e2e.cluster import Cluster, eventually, pod_manifest
from tests.e2e.requests_loop import open_kubeconfig
from vkgateway.api.names import UID_ANNOTATION

HOLLOW_POOL: Final = "v100"
_LABEL: Final = "stream"
_PATH: Final = "/api/v1/namespaces/default/pods"
_COLUMNS: Final = "U:.metadata.uid,T:.metadata.annotations." + UID_ANNOTATION.replace(".", r"\.")


@dataclass
class PodStream:
    """Pods of one tenant, with the monotonic time of each creation by name."""

    tenant: Cluster
    compute: Cluster
    namespace: str
    """Of the compute pods."""
    watched: Path
    """Output of a watch: the UID of a compute pod and of its tenant pod on each line."""
    created: dict[str, float] = field(default_factory=dict)
    uids: dict[str, str] = field(default_factory=dict)
    """UIDs of the tenant pods by name."""
    failures: list[str] = field(default_factory=list)
    pause: float = 0.2
    """Seconds between two creations."""
    prefix: str = field(default_factory=lambda: f"{_LABEL}-{uuid.uuid4().hex[:6]}")
    """Of the pods' names, so that no other stream has a pod of this name."""

    @contextlib.contextmanager
    def creating(self) -> Iterator[None]:
        """Create pods within the block, without waiting for any."""
        host, port, context = open_kubeconfig(self.tenant)
        stop = threading.Event()

        def run() -> None:
            with contextlib.closing(http.client.HTTPSConnection(host, port, context=context, timeout=60)) as connection:
                while not stop.wait(self.pause):
                    self._create_pod(connection)

        thread = threading.Thread(target=run)
        thread.start()
        try:
            yield
        finally:
            stop.set()
            thread.join()

    def _create_pod(self, connection: http.client.HTTPSConnection) -> None:
        manifest = pod_manifest(f"{self.prefix}-{len(self.created)}", nodeSelector={"vkgateway.io/pool": HOLLOW_POOL})
        manifest["metadata"]["labels"] = {_LABEL: "yes"}
        name = manifest["metadata"]["name"]
        self.created[name] = time.monotonic()
        try:
            connection.request("POST", _PATH, json.dumps(manifest), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            body = answer.read()
        except (OSError, http.client.HTTPException) as error:
            connection.close()
            self.failures.append(f"{name}: {error!r}")
            return
        if answer.status == http.client.CREATED:
            self.uids[name] = json.loads(body)["metadata"]["uid"]
        else:
            self.failures.append(f"{name}: {body.decode()}")

    def compute_pods(self) -> dict[str, set[str]]:
        """Return the UIDs of all compute pods that existed since the start, by the UID of their tenant pod."""
        found = defaultdict(set)
        for line in self.watched.read_text().splitlines():
            compute_uid, _, tenant_uid = line.partition(" ")
            found[tenant_uid.strip()].add(compute_uid)
        return found

    def wait_forwarded(self) -> None:
        """Wait until a pod that is created from now on has a compute pod."""
        before = len(self.uids)
        eventually(lambda: self.compute_pods().keys() & set(list(self.uids.values())[before:]), what="a compute pod")

    def check(self) -> None:
        """Wait until all pods run, and check that each has had exactly one compute pod."""
        assert self.failures == []
        eventually(lambda: self.compute_pods().keys() >= set(self.uids.values()), what="all compute pods")
        eventually(self._all_run, what="all tenant pods run")
        listed = self.compute.get("pods", "-n", self.namespace, "-l", f"{_LABEL}=yes")["items"]
        owners = [pod["metadata"]["annotations"][UID_ANNOTATION] for pod in listed]
        assert sorted(owners) == sorted(self.uids.values())
        seen = self.compute_pods()
        assert {name: seen[uid] for name, uid in self.uids.items() if len(seen[uid]) != 1} == {}

    def _all_run(self) -> bool:
        pods = self.tenant.get("pods", "-l", f"{_LABEL}=yes")["items"]
        return len(pods) == len(self.uids) and all(pod["status"]["phase"] == "Running" for pod in pods)


@contextlib.contextmanager
def open_stream(tenant: Cluster, compute: Cluster, *, namespace: str, folder: Path) -> Iterator[PodStream]:
    """Watch the compute pods of a tenant's namespace within the block, and delete the pods at its end."""
    watched = folder / "watched"
    options = ("-n", namespace, "--watch", "--no-headers", "-o", f"custom-columns={_COLUMNS}")
    command = (*compute.kubectl_command, "get", "pods", *options)
    with watched.open("wb") as out, subprocess.Popen(command, stdout=out) as watch:
        try:
            stream = PodStream(tenant, compute, namespace, watched)
            yield stream
            # One request, instead of one for each pod.
            tenant.kubectl("delete", "--raw", f"{_PATH}?labelSelector={_LABEL}")
            eventually(lambda: not tenant.get("pods", "-l", _LABEL)["items"], what="all pods are deleted")
        finally:
            watch.kill()
