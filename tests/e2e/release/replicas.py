"""Failures of a gateway's pod: its process killed or frozen, its packets dropped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from tests.e2e.chart import SYSTEM, ChartPlatform, find_gateway_process, gateway_process
from tests.e2e.cluster import Document, eventually
from tests.e2e.cluster import frozen as frozen_process

_REPLICAS: Final = 2
_DROP_ALL: Final = """
table netdev lost {
  chain received { type filter hook ingress device "eth0" priority 0; policy drop; }
  chain sent { type filter hook egress device "eth0" priority 0; policy drop; }
}
"""


def name_of(pod: Document) -> str:
    """Return the name of a pod."""
    return str(pod["metadata"]["name"])


def wait_for_standby(platform: ChartPlatform) -> Document:
    """Wait until all replicas are ready and one leads, and return the pod of the leader."""

    def find_leader() -> Document | None:
        pods = platform.gateway_pods()
        name = holder(platform) if _are_ready(pods) else ""
        return next((pod for pod in pods if name_of(pod) == name), None)

    leader = eventually(find_leader, what="two ready replicas, of which one leads")
    assert leader is not None
    return leader


def _are_ready(pods: list[Document]) -> bool:
    return len(pods) == _REPLICAS and all(
        "deletionTimestamp" not in pod["metadata"]
        and all(status["ready"] for status in pod["status"].get("containerStatuses", [{"ready": False}]))
        for pod in pods
    )


def holder(platform: ChartPlatform) -> str:
    """Return the name of the pod that holds the Lease; "" if none does."""
    lease = platform.compute.get("lease", "gateway", "-n", SYSTEM)
    return str(lease["spec"].get("holderIdentity", "")).split("/")[0]


def wait_replaced(platform: ChartPlatform, leader: Document) -> None:
    """Wait until another pod than `leader` holds the Lease."""
    eventually(lambda: holder(platform) not in {"", name_of(leader)}, what="another replica leads")


def kill_until_replaced(platform: ChartPlatform, leader: Document) -> None:
    """Kill the process of the leader, and each that starts in its place, until another pod holds the Lease.

    A restarted container has the leader's identity, and would acquire the Lease before it expires.
    """

    def is_replaced() -> bool:
        process = find_gateway_process(leader)
        if process is not None:
            with contextlib.suppress(ProcessLookupError):
                os.kill(process, signal.SIGKILL)
        return holder(platform) not in {"", name_of(leader)}

    eventually(is_replaced, what="another replica leads")


@contextlib.contextmanager
def frozen(pod: Document) -> Iterator[None]:
    """Freeze the process of a gateway within the block. After the block, it continues, and must end by itself."""
    process = gateway_process(pod)
    started = Path(f"/proc/{process}/stat")
    with frozen_process(process):
        yield
    eventually(lambda: not started.exists(), what="the former leader ends")


@contextlib.contextmanager
def packets_dropped(pod: Document) -> Iterator[None]:
    """Drop all packets from and to a pod within the block. After the block, its former process must end by itself."""
    process = gateway_process(pod)
    with Path(f"/proc/{process}/ns/net").open() as namespace:
        _run_nft(namespace.fileno(), "-f", "-", stdin=_DROP_ALL)
        try:
            yield
        finally:
            _run_nft(namespace.fileno(), "delete", "table", "netdev", "lost")
    eventually(lambda: find_gateway_process(pod) != process, what="the former leader ends")


def _run_nft(namespace: int, *args: str, stdin: str = "") -> None:
    """Run nft in an open network namespace, which outlives its processes."""
    command = ("nsenter", f"--net=/proc/self/fd/{namespace}", "nft", *args)
    subprocess.run(command, input=stdin, text=True, check=True, pass_fds=(namespace,))
