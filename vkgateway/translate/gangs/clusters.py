"""Clusters that an application brings up for itself: Ray's head and workers, Spark's driver and executors."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from vkgateway.translate.gangs.fields import Fields
from vkgateway.translate.gangs.marks import Kind, MarkError
from vkgateway.translate.gangs.said import ROLE_STRIDE, Asked, Said

RAY_KIND: Final = Kind("ray.io", "RayCluster", "rayclusters")
_SPARK_KIND: Final = Kind("sparkoperator.k8s.io", "SparkApplication", "sparkapplications")

RAY_CLUSTER: Final = "ray.io/cluster"
_RAY_NODE: Final = "ray.io/node-type"
_RAY_GROUP: Final = "ray.io/group"
_HEAD: Final = "head"

_SPARK_APPLICATION: Final = "spark-app-selector"
_SPARK_ROLE: Final = "spark-role"
_SPARK_EXECUTOR: Final = "spark-exec-id"
_SPARK_OBJECT: Final = "sparkoperator.k8s.io/app-name"


@dataclass(frozen=True, slots=True)
class _Workers:
    """One of a Ray cluster's groups of workers, in pods."""

    name: str
    least: int
    wanted: int
    most: int


def ray(asked: Asked) -> Said | None:
    """A Ray cluster: the head and all workers; where Ray scales it by itself, the head and the least of workers."""
    pod = asked.pod
    name, node = pod.labels.get(RAY_CLUSTER), pod.labels.get(_RAY_NODE)
    if not name or node not in (_HEAD, "worker"):
        return None
    role = _HEAD if node == _HEAD else pod.labels.get(_RAY_GROUP) or str(node)
    reference = pod.beside(RAY_KIND, name, mark=f"label {RAY_CLUSTER}")
    found = asked.look(reference)
    if found is None:
        rank = 0 if role == _HEAD else ROLE_STRIDE + pod.index()
        return Said(name=name, mark=str(reference), role=role, rank=rank, missing=reference)
    spec = Fields.spec(found, reference)
    groups = [_workers(entry) for entry in spec.entries("workerGroupSpecs")]
    scaled = spec.flag("enableInTreeAutoscaling")
    needed = {_HEAD: 1} | {group.name: group.least if scaled else group.wanted for group in groups}
    position = next((place for place, group in enumerate(groups, 1) if group.name == role), len(groups) + 1)
    return Said(
        name=name,
        mark=str(reference),
        minimum=sum(needed.values()),
        size=1 + sum(group.wanted for group in groups),
        maximum=1 + sum(group.most for group in groups) if scaled else None,
        role=role,
        role_minimum={group: number for group, number in needed.items() if number},
        core={_HEAD: 1},
        replaces_succeeded=True,
        rank=0 if role == _HEAD else position * ROLE_STRIDE + pod.index(),
    )


def _workers(entry: Fields) -> _Workers:
    """A group's workers: within its bounds, times the hosts of a replica, none where it is suspended."""
    least, most = entry.count("minReplicas", missing=0), entry.bound("maxReplicas")
    if least > most:
        way_out = f"lower it to at most {most}"
        raise MarkError(entry.mark("minReplicas"), least, f"is more than maxReplicas ({most})", way_out=way_out)
    wanted = max(least, min(entry.count("replicas", missing=least), most))
    hosts = 0 if entry.flag("suspend") else max(1, entry.count("numOfHosts", missing=1))
    return _Workers(entry.text("groupName"), least * hosts, wanted * hosts, most * hosts)


def spark(asked: Asked) -> Said | None:
    """A Spark application: the driver for itself, since it makes the executors; these start from the first one on.

    A driver that waited for executors would wait for ever, and any number of executors gets work done.
    """
    pod = asked.pod
    name, role = pod.labels.get(_SPARK_APPLICATION), pod.labels.get(_SPARK_ROLE)
    if not name or role not in ("driver", "executor"):
        return None
    if role == "driver":
        return Said(name=f"{name}/driver", alone=True)
    application = pod.labels.get(_SPARK_OBJECT)
    size = maximum = None
    if application:
        reference = pod.beside(_SPARK_KIND, application, mark=f"label {_SPARK_OBJECT}")
        found = asked.look(reference)
        if found is not None:
            size, maximum = _executors(Fields.spec(found, reference))
    return Said(
        name=f"{name}/executors",
        mark=f"label {_SPARK_APPLICATION}",
        minimum=1,
        size=size,
        maximum=maximum,
        role=role,
        rank=pod.index(_SPARK_EXECUTOR),
    )


def _executors(spec: Fields) -> tuple[int | None, int | None]:
    """How many executors an application asks for, and how many it may come to ask for; None: not told."""
    dynamic = spec.at("dynamicAllocation")
    if not dynamic.flag("enabled"):
        return max(1, spec.at("executor").count("instances", missing=1)), None
    return None, max(1, dynamic.bound("maxExecutors")) if "maxExecutors" in dynamic else None
