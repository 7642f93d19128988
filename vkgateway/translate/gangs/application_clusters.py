"""Clusters that an application brings up for itself: Ray's head and workers, Spark's driver and executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.translate.gangs.declarations import ROLE_STRIDE, GangDeclaration, PodContext
from vkgateway.translate.gangs.fields import ObjectFields
from vkgateway.translate.gangs.marks import Kind, MarkError

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
    """One of a Ray cluster's groups of workers, in pods."""

    name: str
    minimum: int
    desired: int
    maximum: int


def read_ray(asked: PodContext) -> GangDeclaration | None:
    """A Ray cluster: the head and all workers; where Ray scales it by itself, the head and the least of workers."""
    pod = asked.pod
    name, node = pod.labels.get(RAY_CLUSTER_LABEL), pod.labels.get(_RAY_NODE)
    if not name or node not in (_HEAD, "worker"):
        return None
    role = _HEAD if node == _HEAD else pod.labels.get(_RAY_GROUP) or str(node)
    reference = pod.reference_to(RAY_KIND, name, mark=f"label {RAY_CLUSTER_LABEL}")
    found = asked.find_object(reference)
    if found is None:
        rank = 0 if role == _HEAD else ROLE_STRIDE + pod.pod_index()
        return GangDeclaration(
            name=name, minimum_source=str(reference), role=role, rank=rank, missing_reference=reference
        )
    spec = ObjectFields.of_spec(found, reference)
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
    """A group's workers: within its bounds, times the hosts of a replica, none where it is suspended."""
    least, most = entry.get_count("minReplicas", missing=0), entry.get_limit("maxReplicas")
    if least > most:
        way_out = f"lower it to at most {most}"
        raise MarkError(entry.field_path("minReplicas"), least, f"is more than maxReplicas ({most})", way_out=way_out)
    wanted = max(least, min(entry.get_count("replicas", missing=least), most))
    hosts = 0 if entry.is_true("suspend") else max(1, entry.get_count("numOfHosts", missing=1))
    return _WorkerGroup(entry.get_text("groupName"), least * hosts, wanted * hosts, most * hosts)


def read_spark(asked: PodContext) -> GangDeclaration | None:
    """A Spark application: the driver for itself, since it makes the executors; these start from the first one on.

    A driver that waited for executors would wait for ever, and any number of executors gets work done.
    """
    pod = asked.pod
    name, role = pod.labels.get(_SPARK_APPLICATION), pod.labels.get(_SPARK_ROLE)
    if not name or role not in ("driver", "executor"):
        return None
    if role == "driver":
        return GangDeclaration(name=f"{name}/driver", is_standalone=True)
    application = pod.labels.get(_SPARK_OBJECT)
    size = maximum = None
    if application:
        reference = pod.reference_to(_SPARK_KIND, application, mark=f"label {_SPARK_OBJECT}")
        found = asked.find_object(reference)
        if found is not None:
            size, maximum = _executor_counts(ObjectFields.of_spec(found, reference))
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
    """How many executors an application asks for, and how many it may come to ask for; None: not told."""
    dynamic = spec.get_object("dynamicAllocation")
    if not dynamic.is_true("enabled"):
        return max(1, spec.get_object("executor").get_count("instances", missing=1)), None
    return None, max(1, dynamic.get_limit("maxExecutors")) if "maxExecutors" in dynamic else None
