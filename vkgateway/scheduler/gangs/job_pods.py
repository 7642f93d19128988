"""Number of pods that a Job runs at the same time, and how many of them exist or can still be created."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.marks import Kind, Reference
from vkgateway.scheduler.gangs.pod_view import GangPodView, controller_key

JOB_KIND: Final = Kind("batch", "Job", "jobs")
_CRON_JOB: Final = ("batch", "CronJob")
_INDEXES: Final = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?", re.ASCII)
_FINAL_CONDITIONS: Final = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})
"""Conditions after which the Job controller creates no pods (batch/v1 JobConditionType)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class JobPods:
    """Pod counts of a Job at one time."""

    desired: int
    """Number of pods that run at the same time until the first pod ends."""
    remaining: int
    """Number of pods that exist or can still be created at the same time."""
    has_cron_job: bool = False
    """A CronJob created the Job: each run has its own Job."""

    @property
    def ended_count(self) -> int:
        """Number of desired pods that ended and are not replaced."""
        return max(0, self.desired - self.remaining)


def job_reference(pod: GangPodView) -> Reference | None:
    """Return the Job that controls a pod, or None.

    Raises:
        MarkError: the controller's name is not a valid object name.
    """
    group, kind, name = pod.controller_key
    if (group, kind) != JOB_KIND[:2] or not name:
        return None
    return pod.reference_to(JOB_KIND, name, mark="the owner's name")


def read_job_pods(found: Object, reference: Reference) -> JobPods:
    """Return the pod counts of a Job, from its spec and status.

    The Job controller runs no more pods than there is work left. It replaces neither a completed index nor one that
    failed for good (`backoffLimitPerIndex`). Without `completions` it creates no pod after the first success. A Job
    with a final condition creates none at all.

    https://kubernetes.io/docs/concepts/workloads/controllers/job/

    Raises:
        MarkError: a field has the wrong type.
    """
    spec, status = ObjectFields.of_part(found, "spec", reference), ObjectFields.of_part(found, "status", reference)
    wanted = spec.get_count("parallelism", missing=1)
    completions = spec.get_count("completions", missing=1) if "completions" in spec else None
    if completions is not None:
        wanted = min(wanted, completions)
    return JobPods(
        desired=max(1, wanted),
        remaining=_remaining_pods(status, wanted, completions),
        has_cron_job=controller_key(found)[:2] == _CRON_JOB,
    )


def _remaining_pods(status: ObjectFields, wanted: int, completions: int | None) -> int:
    if any(
        entry.get_text("type") in _FINAL_CONDITIONS and entry.get_text("status") == "True"
        for entry in status.get_entries("conditions")
    ):
        return 0
    succeeded = status.get_count("succeeded", missing=0)
    if completions is None:
        return status.get_count("active", missing=0) if succeeded else max(1, wanted)
    return max(0, completions - succeeded - _count_indexes(status.get_text("failedIndexes")))


def _count_indexes(text: str) -> int:
    """Return the number of indexes in a text like `1,3-5`. Other parts are ignored."""
    found = (_INDEXES.fullmatch(part) for part in text.split(","))
    return sum(int(each[2] or each[1]) - int(each[1]) + 1 for each in found if each is not None)
