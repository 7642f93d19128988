"""Gangs of plain Jobs with parallelism, declared by annotations on the pod template."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.scheduler.gangs.declarations import GangDeclaration, PodContext
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.job_pods import JOB_KIND, read_job_pods

_NAME: Final = "batch.kubernetes.io/job-name"


def read_job(context: PodContext) -> GangDeclaration | None:
    """Return the gang of a Job whose pods carry `vkgateway.io/gang: job` or a count without a name.

    All pods that the Job runs at the same time are the gang.
    """
    if not context.own_annotations.is_job_gang:
        return None
    pod = context.pod
    group, kind, owner = pod.controller_key
    name = owner if (group, kind) == JOB_KIND[:2] else pod.labels.get(_NAME)
    if not name:
        return None
    reference = pod.reference_to(JOB_KIND, name, mark="the owner's name")
    declaration = GangDeclaration(
        name=name, minimum_source=str(reference), rank=pod.pod_index(), missing_reference=reference
    )
    found = context.find_object(reference)
    if found is None:
        return declaration
    pods = read_job_pods(found, reference)
    return replace(
        declaration,
        minimum=pods.desired,
        size=pods.desired,
        remaining=pods.remaining,
        run_limit=ObjectFields.of_part(found, "spec", reference).get_seconds("activeDeadlineSeconds"),
        missing_reference=None,
    )
