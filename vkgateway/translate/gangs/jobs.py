"""Plain Jobs with parallelism, which are gangs only where our annotations on the pod template say so."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from vkgateway.translate.gangs.fields import Fields
from vkgateway.translate.gangs.jobpods import JOB, job_pods
from vkgateway.translate.gangs.said import Asked, Said

_NAME: Final = "batch.kubernetes.io/job-name"


def job(asked: Asked) -> Said | None:
    """A Job whose pods say `vkgateway.io/gang: job`, or a number without a name: all that run at once are the gang."""
    if not asked.own.of_owner:
        return None
    pod = asked.pod
    group, kind, owner = pod.controller
    name = owner if (group, kind) == JOB[:2] else pod.labels.get(_NAME)
    if not name:
        return None
    reference = pod.beside(JOB, name, mark="the owner's name")
    said = Said(name=name, mark=str(reference), rank=pod.index(), missing=reference)
    found = asked.look(reference)
    if found is None:
        return said
    pods = job_pods(found, reference)
    return replace(
        said,
        minimum=pods.wanted,
        size=pods.wanted,
        remaining=pods.remaining,
        run_limit=Fields.spec(found, reference).seconds("activeDeadlineSeconds"),
        missing=None,
    )
