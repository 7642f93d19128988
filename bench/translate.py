"""translate: CPU to translate one typical pod and its status, without a platform."""

from __future__ import annotations

import copy
from collections.abc import Callable, Sequence
from time import process_time
from typing import Any, Final

import msgspec

from bench.outcome import Cell, Outcome, Target
from bench.session import Session
from bench.typicalpod import running_compute_pod, typical_pod
from vkgateway.api.objects import Object
from vkgateway.kinds.context import PoolContext, TenantContext
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.translation.pod_references import find_references
from vkgateway.kinds.pods.translation.to_compute import forward_pod
from vkgateway.kinds.pods.translation.to_tenant import mirror_status

TITLE: Final = (
    "Forwarding one pod and mirroring its status: an init container, two containers, ten variables, four volumes"
)
COLUMNS: Final = ["what", "ms", "relative to the baseline"]
_PODS: Final = 500
"""Number of different pods in a round, so that caches do not help."""
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
    """Measure on this core. The session is not needed."""
    if session is not None:
        session.report("translation of a pod")
    return _build_outcome(measure_pods(_PODS, _ROUNDS))


def measure_pods(pods: int, rounds: int) -> dict[str, float]:
    """Return milliseconds of CPU per pod by step, each the median of `rounds` rounds over `pods` pods."""
    tenant_pods = [typical_pod(number) for number in range(pods)]
    texts = [msgspec.json.encode(pod) for pod in tenant_pods]
    compute_pods = [running_compute_pod(_forward_pod(pod)) for pod in tenant_pods]
    work: dict[str, tuple[Act, Sequence[Any]]] = {
        "json": (_read_and_write, texts),
        "copy": (copy.deepcopy, tenant_pods),
        "judge": (_check_pod, tenant_pods),
        "down": (_forward_pod, tenant_pods),
        "up": (_mirror_status, compute_pods),
    }
    figures: dict[str, list[float]] = {name: [] for name in work}
    for _ in range(rounds):
        for name, (act, items) in work.items():  # in turns, so that other load on the machine affects all of them
            figures[name].append(_mean_milliseconds(act, items))
    return {name: sorted(each)[rounds // 2] for name, each in figures.items()}


def _read_and_write(text: bytes) -> bytes:
    return msgspec.json.encode(msgspec.json.decode(text))


def _forward_pod(pod: Object) -> Object:
    return forward_pod(pod, tenant=_TENANT, pool=_POOL, namespace="alpha--default")


def _check_pod(pod: Object) -> object:
    return find_references(pod), find_refusals(pod, tenant=_TENANT, pool=_POOL)


def _mirror_status(compute_pod: Object) -> object:
    """Mirror the status of a running compute pod to a tenant pod that was just bound."""
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": "2026-03-01T12:00:00Z"}
    tenant_status = {"phase": "Pending", "qosClass": "Burstable", "conditions": [scheduled]}
    return mirror_status(compute_pod, tenant_status, node_ip=_NODE_IP, node_name="a100.local", observed=1)


def _mean_milliseconds(act: Act, items: Sequence[Any]) -> float:
    started = process_time()
    for item in items:
        act(item)
    return 1000 * (process_time() - started) / len(items)


def _build_outcome(figures: dict[str, float]) -> Outcome:
    names = {
        "json": "decode and encode the pod's JSON, the baseline",
        "copy": "deep copy of the pod",
        "judge": "forward: references and policy checks",
        "down": "forward: the compute pod",
        "up": "mirror: the status patch",
    }
    rows: list[list[Cell]] = [
        [text, round(figures[name], 3), round(figures[name] / figures["json"], 2)] for name, text in names.items()
    ]
    return Outcome(
        columns=list(COLUMNS),
        rows=rows,
        targets=[
            Target(
                what="forward, both steps", seen=round(figures["judge"] + figures["down"], 3), limit=0.15, unit="ms"
            ),
            Target(what="mirror", seen=round(figures["up"], 3), limit=0.1, unit="ms"),
        ],
        notes=[f"CPU on one core: median of {_ROUNDS} rounds over {_PODS} different pods each, in turns."],
    )
