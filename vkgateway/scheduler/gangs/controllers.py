"""Facts that a pod's controller adds to the marks of its gang: how many pods can still arrive, and the run of a
CronJob.
"""

from __future__ import annotations

from dataclasses import replace

from vkgateway.scheduler.gangs.declarations import Lookup
from vkgateway.scheduler.gangs.job_pods import JobPods, job_reference, read_job_pods
from vkgateway.scheduler.gangs.marks import GangMarks
from vkgateway.scheduler.gangs.pod_view import GangPodView


def add_controller(marks: GangMarks, pod: GangPodView, lookup: Lookup, *, named: bool) -> GangMarks:
    """Return the marks with the controller's UID and, for a pod of a Job, the Job's pod counts.

    `named`: a person chose the gang's name, so several Jobs may carry it. A Job that creates all pods of the gang is
    then a gang by itself: the next run of a CronJob does not join the previous one. The arbiter does not decide about
    such a gang until the Job is known.

    Raises:
        MarkError: a field of the Job has the wrong type.
    """
    restarts = pod.spec.get("restartPolicy") == "Always"  # Such a pod succeeds only if it is deleted.
    marks = replace(marks, controller_uid=pod.controller_uid, replaces_succeeded=marks.replaces_succeeded or restarts)
    reference = job_reference(pod)
    found = lookup(reference) if reference is not None else None
    if reference is None:
        return marks
    if found is None:
        return replace(marks, missing_reference=marks.missing_reference or reference) if named else marks
    pods = read_job_pods(found, reference)
    group = f"{marks.group}/{reference.name}" if named and _creates_all(pods, marks) else marks.group
    return replace(marks, group=group, job_desired=pods.desired, job_ended=pods.ended_count)


def _creates_all(pods: JobPods, marks: GangMarks) -> bool:
    """Return whether a Job creates all pods of the gang.

    Without a size, that is certain only for the Jobs of a CronJob.
    """
    if marks.missing_reference is not None:
        return False
    if marks.size is not None:
        return pods.desired >= marks.size
    return pods.has_cron_job and pods.desired >= marks.minimum
