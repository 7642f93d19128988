"""Plain Jobs with parallelism, which are gangs only where our annotations on the pod template say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.translate.gangs.declarations import GangDeclaration, PodContext
from vkgateway.translate.gangs.fields import ObjectFields
from vkgateway.translate.gangs.job_pods import JOB_KIND, read_job_pods

_NAME: Final = "batch.kubernetes.io/job-name"


def read_job(asked: PodContext) -> GangDeclaration | None:
    """A Job whose pods say `vkgateway.io/gang: job`, or a number without a name: all that run at once are the gang."""
    if not asked.own_annotations.is_job_gang:
        return None
    pod = asked.pod
    group, kind, owner = pod.controller_key
    name = owner if (group, kind) == JOB_KIND[:2] else pod.labels.get(_NAME)
    if not name:
        return None
    reference = pod.reference_to(JOB_KIND, name, mark="the owner's name")
    said = GangDeclaration(name=name, minimum_source=str(reference), rank=pod.pod_index(), missing_reference=reference)
    found = asked.find_object(reference)
    if found is None:
        return said
    pods = read_job_pods(found, reference)
    return replace(
        said,
        minimum=pods.desired,
        size=pods.desired,
        remaining=pods.remaining,
        run_limit=ObjectFields.of_spec(found, reference).get_seconds("activeDeadlineSeconds"),
        missing_reference=None,
    )
