"""translate: what rewriting one typical pod and its status takes; needs no platform."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final

import msgspec

from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from bench.typicalpod import running_below, typical_pod
from vkgateway.model.objects import Object
from vkgateway.translate.context import PoolContext, TenantContext
from vkgateway.translate.pod_references import find_references
from vkgateway.translate.policy import find_refusals
from vkgateway.translate.to_compute import forward_pod
from vkgateway.translate.to_tenant import mirror_status

TITLE: Final = "One pod down and its status up: an init container, two containers, ten variables, four volumes"
COLUMNS: Final = ["what", "ms", "of reading and writing its JSON"]
_PODS: Final = 500
"""Different pods of a round, so that nothing is known from the one before."""
_ROUNDS: Final = 15
_NODE_IP: Final = "10.213.0.1"
_TENANT: Final = TenantContext(
    name="alpha",
    api_host="10.213.4.1",
    api_port=6443,
    dns_servers=("10.160.0.10",),
    api_service="10.160.0.1",
    service_range="10.160.0.0/16",
)
_POOL: Final = PoolContext(
    name="a100",
    compute_cluster="local",
    node_name="a100.local",
    node_selector={"platform.vkgateway.io/pool": "a100"},
    node_labels={"kubernetes.io/os": "linux", "nvidia.com/gpu.product": "A100"},
)

Act = Callable[[Any], object]


async def run(session: Session | None) -> Outcome:
    """Measure on this core; the session is not needed."""
    if session is not None:
        session.report("the translation of a pod")
    return _tell(measure(_PODS, _ROUNDS))


def measure(pods: int, rounds: int) -> dict[str, float]:
    """Milliseconds of CPU a pod by what is done, each the median of so many rounds over so many pods."""
    above = [typical_pod(number) for number in range(pods)]
    texts = [msgspec.json.encode(pod) for pod in above]
    below = [running_below(_down(pod)) for pod in above]
    work: dict[str, tuple[Act, Sequence[Any]]] = {
        "json": (_read_and_write, texts),
        "copy": (copy.deepcopy, above),
        "judge": (_judge, above),
        "down": (_down, above),
        "up": (_up, below),
    }
    seen: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (act, items) in work.items():  # in turns: what the machine does beside them meets all of them
            seen[name].append(_milliseconds(act, items))
    return {name: sorted(each)[rounds // 2] for name, each in seen.items()}


def _read_and_write(text: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text))


def _down(pod: Object) -> Object:
    return forward_pod(pod, tenant=_TENANT, pool=_POOL, namespace="alpha--default")


def _judge(pod: Object) -> object:
    return find_references(pod), find_refusals(pod, tenant=_TENANT, pool=_POOL)


def _up(below: Object) -> object:
    """The status of a pod that its scheduler has just bound becomes that of one that runs."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}
    above = {"phase": "Pending", "qosClass": "Burstable", "conditions": [scheduled]}
    return mirror_status(below, above, node_ip=_NODE_IP, node_name="a100.local", observed=1)


def _milliseconds(act: Act, items: Sequence[Any]) -> float:
    started = process_time()
    for item in items:
        act(item)
    return 1000 * (process_time() - started) / len(items)


def _tell(seen: dict[str, float]) -> Outcome:
    names = {
        "json": "reading and writing the pod's JSON, the baseline",
        "copy": "a deep copy of it",
        "judge": "down: what it refers to, and whether policy allows it",
        "down": "down: the compute pod",
        "up": "up: the patch of the status",
    }
    rows: list[list[Cell]] = [
        [text, round(seen[name], 3), round(seen[name] / seen["json"], 2)] for name, text in names.items()
    ]
    return Outcome(
        columns=list(COLUMNS),
        rows=rows,
        targets=[
            Target(what="down, both together", seen=round(seen["judge"] + seen["down"], 3), limit=0.15, unit="ms"),
            Target(what="up", seen=round(seen["up"], 3), limit=0.1, unit="ms"),
        ],
        notes=[f"CPU on one core, median of {_ROUNDS} rounds over {_PODS} different pods each, in turns."],
    )
