"""Reader of openb (Alibaba, 2023): a CSV file of nodes, and one of pods with their times in seconds.

https://github.com/alibaba/clusterdata/tree/master/cluster-trace-gpu-v2023. The trace names no tenants, so pods are
distributed among them by name. Its QoS classes LS and Guaranteed are guaranteed work, Burstable and BE low work.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence

from vkgateway.scheduler.core.snapshot import GUARANTEED, LOW, Node, Pool, PoolKey, Requirement, Shape
from vkgateway_platform.simulate.scenario import GPU, POOL, Job
from vkgateway_platform.simulate.traces.errors import TraceError, parse_number
from vkgateway_platform.simulate.traces.hashing import choose_by_name

MODEL_LABEL = "model"
"""The label of a node that holds its GPU model."""
_MIB = 1 << 20
_BANDS = {"LS": GUARANTEED, "Guaranteed": GUARANTEED, "BE": LOW, "Burstable": LOW}
_POD_FIELDS = ("name", "cpu_milli", "memory_mib", "num_gpu", "gpu_milli", "qos", "creation_time", "deletion_time")


def read_nodes(rows: Iterable[Mapping[str, object]]) -> tuple[Pool, ...]:
    """Return pools of the nodes that have GPUs; a field `pool` names their pool, and without one there is one pool.

    Raises:
        TraceError: a field is missing or is no number.
    """
    pools: dict[str, list[Node]] = {}
    for line, row in enumerate(rows, start=1):
        _require_fields(row, ("sn", "gpu"), where=f"node {line}")
        name = str(row["sn"])
        gpus = parse_number(row["gpu"], field="gpu", where=f"node {name}")
        if gpus:
            pools.setdefault(str(row.get("pool") or ""), []).append(_make_node(name, gpus, row))
    keys: dict[str, PoolKey] = {name: (POOL[0], name) if name else POOL for name in pools}
    return tuple(Pool(key=keys[name], nodes=tuple(nodes), governed=(GPU,)) for name, nodes in pools.items())


def _make_node(name: str, gpus: float, row: Mapping[str, object]) -> Node:
    allocatable = {GPU: int(gpus * 1000)}
    if row.get("cpu_milli"):
        allocatable["cpu"] = int(parse_number(row["cpu_milli"], field="cpu_milli", where=f"node {name}"))
    if row.get("memory_mib"):
        memory = parse_number(row["memory_mib"], field="memory_mib", where=f"node {name}")
        allocatable["memory"] = int(memory * _MIB * 1000)
    labels = {MODEL_LABEL: str(row["model"])} if row.get("model") else {}
    return Node(name=name, allocatable=allocatable, labels=labels)


def read_pods(rows: Iterable[Mapping[str, object]], tenants: Sequence[str]) -> Iterator[Job]:
    """Yield a job for each pod that requests GPUs and ran.

    Raises:
        TraceError: a field is missing, or has a value that it cannot have.
    """
    for line, row in enumerate(rows, start=1):
        _require_fields(row, _POD_FIELDS, where=f"pod {line}")
        job = _make_job(row, tenants)
        if job is not None:
            yield job


def _make_job(row: Mapping[str, object], tenants: Sequence[str]) -> Job | None:
    name = str(row["name"])

    def read(field: str) -> float:
        return parse_number(row[field], field=field, where=f"pod {name}")

    count = read("num_gpu")
    if not count or not row["deletion_time"]:
        return None
    created, deleted = read("creation_time"), read("deletion_time")
    started = read("scheduled_time") if row.get("scheduled_time") else created
    if deleted <= started:
        return None
    band = _BANDS.get(str(row["qos"]))
    if band is None:
        raise TraceError(f"pod {name}: qos {row['qos']!r} does not exist", hint=f"Known: {', '.join(_BANDS)}.")
    gpus = int(count * 1000) if count > 1 else int(read("gpu_milli"))
    requests = {GPU: gpus, "cpu": int(read("cpu_milli")), "memory": int(read("memory_mib") * _MIB * 1000)}
    shape = Shape(Shape.from_requests(requests).requests, terms=_model_terms(str(row.get("gpu_spec") or "")))
    tenant = choose_by_name(name, tenants)
    return Job(
        id=name,
        tenant=tenant,
        shapes=(shape,),
        submitted=created,
        run=deleted - started,
        band=band,
        kind=f"{tenant}/{band}/{gpus}",
    )


def _model_terms(models: str) -> tuple[tuple[Requirement, ...], ...]:
    if not models:
        return ()
    return ((Requirement(key=MODEL_LABEL, operator="In", values=tuple(models.split("|"))),),)


def _require_fields(row: Mapping[str, object], fields: Iterable[str], *, where: str) -> None:
    for field in fields:
        if row.get(field) is None:
            raise TraceError(f"{where} has no {field}", hint="docs/how-to/simulate.md lists the fields of each format.")
