"""Job objects of the trace in its tenants."""

from __future__ import annotations

from typing import Any, Final

from bench.pods import PodKind, pod_manifest
from bench.scale.workload import job_gpus
from vkgateway.api.names import GANG_ANNOTATION, LOW_CLASS
from vkgateway.scheduler.core.snapshot import LOW
from vkgateway_platform.simulate.scenario import Job

RUN: Final = "scale"
_RUN_SECONDS: Final = "kwok.vkgateway.io/run-seconds"
_TTL: Final = 10
"""Seconds after which the tenant's control plane deletes an ended Job with its pods."""


def job_name(job: Job) -> str:
    """Return the name of the Job object."""
    return job.id.rpartition("/")[2]


def job_manifest(job: Job, *, grace: int) -> dict[str, Any]:
    """Return the Job: all its pods are one gang, an eviction does not fail it, and its pods end by themselves.

    It is Indexed with a back-off for each index. Otherwise the Job controller waits longer for each pod of an evicted
    gang, up to ten minutes.
    """
    pods = len(job.shapes)
    kind = PodKind(
        run=RUN,
        gpus=job_gpus(job) // pods,
        restart="Never",
        priority_class=LOW_CLASS if job.band is LOW else "",
        annotations={GANG_ANNOTATION: "job", _RUN_SECONDS: f"{job.run:g}"},
    )
    template = pod_manifest("", kind)
    template["spec"]["terminationGracePeriodSeconds"] = grace
    metadata = {field: template["metadata"][field] for field in ("labels", "annotations")}
    disrupted = {"action": "Ignore", "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}]}
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": job_name(job)},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "completionMode": "Indexed",
            "backoffLimitPerIndex": 1000,
            "podFailurePolicy": {"rules": [disrupted]},
            "ttlSecondsAfterFinished": _TTL,
            "template": {"metadata": metadata, "spec": template["spec"]},
        },
    }
