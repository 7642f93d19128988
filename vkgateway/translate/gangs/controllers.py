"""What the controller of a pod adds to the marks of its gang: how many pods can still arrive, and which run it is."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.translate.gangs.jobpods import JobPods, job_pods, job_reference
from vkgateway.translate.gangs.marks import GangMarks
from vkgateway.translate.gangs.said import Lookup
from vkgateway.translate.gangs.view import PodView


def with_controller(marks: GangMarks, pod: PodView, look: Lookup, *, named: bool) -> GangMarks:
    """Return the marks with the controller's UID and what its Job, where it is one, says of its pods.

    `named`: a person chose the gang's name. Then several Jobs may carry it, and one that creates all of a gang's pods
    by itself is a gang of its own: the next run of a CronJob does not join the one before. While the Job is not known
    such a gang is not judged.

    Raises:
        MarkError: a field of the Job is not of its type.
    """
    restarts = pod.spec.get("restartPolicy") == "Always"  # Such a pod succeeds only where it is deleted.
    marks = replace(marks, controller=pod.controller_uid, replaces_succeeded=marks.replaces_succeeded or restarts)
    reference = job_reference(pod)
    found = look(reference) if reference is not None else None
    if reference is None:
        return marks
    if found is None:
        return replace(marks, waits_for=marks.waits_for or reference) if named else marks
    pods = job_pods(found, reference)
    group = f"{marks.group}/{reference.name}" if named and _creates_all(pods, marks) else marks.group
    return replace(marks, group=group, job_wanted=pods.wanted, job_ended=pods.ended)


def _creates_all(pods: JobPods, marks: GangMarks) -> bool:
    """Whether a Job creates all pods of the gang. Without a size only a CronJob tells that its runs are apart."""
    if marks.waits_for is not None:
        return False
    if marks.size is not None:
        return pods.wanted >= marks.size
    return pods.scheduled and pods.wanted >= marks.minimum
