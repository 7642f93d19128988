"""Gangs of clusters that an application starts: Ray head and workers, Spark driver and executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.scheduler.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.marks import Kind, MarkError

RAY_KIND: Final = Kind("ray.io", "RayCluster", "rayclusters")
_SPARK_KIND: Final = Kind("sparkoperator.k8s.io", "SparkApplication", "sparkapplications")

RAY_CLUSTER_LABEL: Final = "ray.io/cluster"
_RAY_NODE: Final = "ray.io/node-type"
_RAY_GROUP: Final = "ray.io/group"
_HEAD: Final = "head"

_SPARK_APPLICATION: Final = "spark-app-selector"
_SPARK_ROLE: Final = "spark-role"
_SPARK_EXECUTOR: Final = "spark-exec-id"
_SPARK_OBJECT: Final = "sparkoperator.k8s.io/app-name"


@dataclass(frozen=True, slots=True)
class _WorkerGroup:
    """Worker group of a Ray cluster, counted in pods."""

    name: str
    minimum: int
    desired: int
    maximum: int


def read_ray(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a Ray cluster: head and all workers, or head and minimum workers if Ray scales the cluster."""
    pod = context.pod
    name, node = pod.labels.get(RAY_CLUSTER_LABEL), pod.labels.get(_RAY_NODE)
    if not name or node not in (_HEAD, "worker"):
        return None
    role = _HEAD if node == _HEAD else pod.labels.get(_RAY_GROUP) or str(node)
    reference = pod.reference_to(RAY_KIND, name, mark=f"label {RAY_CLUSTER_LABEL}")
    found = context.find_object(reference)
    if found is None:
        rank = 0 if role == _HEAD else ROLE_STRIDE + pod.pod_index()
        return GangDeclaration(
            name=name, minimum_source=str(reference), role=role, rank=rank, missing_reference=reference
        )
    spec = ObjectFields.of_part(found, "spec", reference)
    groups = [_read_worker_group(entry) for entry in spec.get_entries("workerGroupSpecs")]
    scaled = spec.is_true("enableInTreeAutoscaling")
    needed = {_HEAD: 1} | {group.name: group.minimum if scaled else group.desired for group in groups}
    position = next((place for place, group in enumerate(groups, 1) if group.name == role), len(groups) + 1)
    return GangDeclaration(
        name=name,
        minimum_source=str(reference),
        minimum=sum(needed.values()),
        size=1 + sum(group.desired for group in groups),
        maximum=1 + sum(group.maximum for group in groups) if scaled else None,
        role=role,
        role_minimum={group: number for group, number in needed.items() if number},
        required_roles={_HEAD: 1},
        replaces_succeeded=True,
        rank=0 if role == _HEAD else position * ROLE_STRIDE + pod.pod_index(),
    )


def _read_worker_group(entry: ObjectFields) -> _WorkerGroup:
    """Return a group's worker pods: replicas within their bounds, times the hosts of a replica.

    A suspended group has none.
    """
    least, most = entry.get_count("minReplicas", missing=0), entry.get_limit("maxReplicas")
    if least > most:
        remedy = f"lower it to at most {most}"
        raise MarkError(entry.field_path("minReplicas"), least, f"is more than maxReplicas ({most})", remedy=remedy)
    wanted = max(least, min(entry.get_count("replicas", missing=least), most))
    hosts = 0 if entry.is_true("suspend") else max(1, entry.get_count("numOfHosts", missing=1))
    return _WorkerGroup(entry.get_text("groupName"), least * hosts, wanted * hosts, most * hosts)


def read_spark(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a Spark application: its driver alone, or its executors from the first one on.

    The driver creates the executors, so a driver that waited for them would wait forever. Any number of executors makes
    progress.
    """
    pod = context.pod
    name, role = pod.labels.get(_SPARK_APPLICATION), pod.labels.get(_SPARK_ROLE)
    if not name or role not in ("driver", "executor"):
        return None
    if role == "driver":
        return GangDeclaration(name=f"{name}/driver", is_standalone=True)
    application = pod.labels.get(_SPARK_OBJECT)
    size = maximum = None
    if application:
        reference = pod.reference_to(_SPARK_KIND, application, mark=f"label {_SPARK_OBJECT}")
        found = context.find_object(reference)
        if found is not None:
            size, maximum = _executor_counts(ObjectFields.of_part(found, "spec", reference))
    return GangDeclaration(
        name=f"{name}/executors",
        minimum_source=f"label {_SPARK_APPLICATION}",
        minimum=1,
        size=size,
        maximum=maximum,
        role=role,
        rank=pod.pod_index(_SPARK_EXECUTOR),
    )


def _executor_counts(spec: ObjectFields) -> tuple[int | None, int | None]:
    """Return the number of executors that an application requests, and its upper bound. None: not specified."""
    dynamic = spec.get_object("dynamicAllocation")
    if not dynamic.is_true("enabled"):
        return max(1, spec.get_object("executor").get_count("instances", missing=1)), None
    return None, max(1, dynamic.get_limit("maxExecutors")) if "maxExecutors" in dynamic else None
