"""What the controller of a pod adds to the marks of its gang: how many pods can still arrive, and which run it is."""

from __future__ import annotations

from dataclasses import replace

from vkgateway.translate.gangs.declarations import Lookup
from vkgateway.translate.gangs.job_pods import JobPods, job_reference, read_job_pods
from vkgateway.translate.gangs.marks import GangMarks
from vkgateway.translate.gangs.pod_view import GangPodView


def add_controller(marks: GangMarks, pod: GangPodView, look: Lookup, *, named: bool) -> GangMarks:
    """Return the marks with the controller's UID and what its Job, where it is one, says of its pods.

    `named`: a person chose the gang's name. Then several Jobs may carry it, and one that creates all of a gang's pods
    by itself is a gang of its own: the next run of a CronJob does not join the one before. While the Job is not known
    such a gang is not judged.

    Raises:
        MarkError: a field of the Job is not of its type.
    """
    restarts = pod.spec.get("restartPolicy") == "Always"  # Such a pod succeeds only where it is deleted.
    marks = replace(marks, controller_uid=pod.controller_uid, replaces_succeeded=marks.replaces_succeeded or restarts)
    reference = job_reference(pod)
    found = look(reference) if reference is not None else None
    if reference is None:
        return marks
    if found is None:
        return replace(marks, missing_reference=marks.missing_reference or reference) if named else marks
    pods = read_job_pods(found, reference)
    group = f"{marks.group}/{reference.name}" if named and _creates_all(pods, marks) else marks.group
    return replace(marks, group=group, job_desired=pods.desired, job_ended=pods.ended_count)


def _creates_all(pods: JobPods, marks: GangMarks) -> bool:
    """Whether a Job creates all pods of the gang. Without a size only a CronJob tells that its runs are apart."""
    if marks.missing_reference is not None:
        return False
    if marks.size is not None:
        return pods.desired >= marks.size
    return pods.has_cron_job and pods.desired >= marks.minimum
