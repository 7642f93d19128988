"""Integrations that declare gangs, in order of precedence, and the marks of a pod read through them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.api.names import GANG_RUN_LIMIT_ANNOTATION
from vkgateway.api.objects import Object
from vkgateway.scheduler.gangs import mark_values
from vkgateway.scheduler.gangs.application_clusters import read_ray, read_spark
from vkgateway.scheduler.gangs.declarations import GangDeclaration, Lookup, PodContext, apply_annotations
from vkgateway.scheduler.gangs.fields import ObjectFields
from vkgateway.scheduler.gangs.job_pods import JOB_KIND, JobPods, job_reference, read_job_pods
from vkgateway.scheduler.gangs.jobset_lws import read_jobset, read_leader_worker_set
from vkgateway.scheduler.gangs.marks import FoundObjects, GangMarks, Kind, MarkError, Reference
from vkgateway.scheduler.gangs.own_annotations import JOB_OWNER, NAME_MARK, OwnAnnotations, read_own_annotations
from vkgateway.scheduler.gangs.pod_groups import (
    read_coscheduling,
    read_kueue,
    read_scheduling_group,
    read_vkgateway,
    read_volcano,
    read_workload,
)
from vkgateway.scheduler.gangs.pod_view import GangPodView
from vkgateway.scheduler.gangs.training_jobs import read_training_job

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


_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
_LONGEST_RUN: Final = "kueue.x-k8s.io/max-exec-time-seconds"


@dataclass(frozen=True, slots=True)
class Integration:
    """Integration that declares gangs: its key, its title for people, its reader and its documentation."""

    key: str
    title: str
    read: Callable[[PodContext], GangDeclaration | None]
    source: str


_EXPLICIT_INTEGRATIONS: Final = (
    Integration("gang", "vkgateway.io/gang", read_vkgateway, "docs/concepts/gangs.md"),
    Integration(
        "podgroup",
        "Kubernetes PodGroup",
        read_scheduling_group,
        "https://kubernetes.io/docs/concepts/workloads/pods/scheduling-group/",
    ),
    Integration(
        "workload",
        "Kubernetes Workload",
        read_workload,
        "https://kubernetes.io/docs/concepts/workloads/pods/workload-reference",
    ),
    Integration("volcano", "Volcano PodGroup", read_volcano, "https://volcano.sh/en/docs/podgroup/"),
    Integration(
        "coscheduling",
        "coscheduling PodGroup",
        read_coscheduling,
        "https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/",
    ),
    Integration("kueue", "Kueue pod group", read_kueue, "https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/"),
)
"""Integrations in which a person declares a group and its minimum."""

_INFERRED_INTEGRATIONS: Final = (
    Integration(
        "training",
        "Kubeflow training job",
        read_training_job,
        "https://github.com/kubeflow/training-operator/blob/master/pkg/apis/kubeflow.org/v1/common_types.go",
    ),
    Integration(
        "ray", "Ray cluster", read_ray, "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"
    ),
    Integration(
        "spark", "Spark application", read_spark, "https://spark.apache.org/docs/latest/running-on-kubernetes.html"
    ),
    Integration("jobset", "JobSet", read_jobset, "https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"),
    Integration(
        "lws",
        "LeaderWorkerSet",
        read_leader_worker_set,
        "https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/",
    ),
    Integration("job", "Job", read_job, "https://kubernetes.io/docs/concepts/workloads/controllers/job/"),
)
"""Integrations that infer the gang from the object that creates its pods."""

INTEGRATIONS: Final = (*_EXPLICIT_INTEGRATIONS, *_INFERRED_INTEGRATIONS)
"""Explicit integrations first, vkgateway's annotations before all. Then those of operators. A plain Job comes last."""


_NO_KINDS: Final[frozenset[Kind]] = frozenset()


def read_marks(pod: Object, found: FoundObjects, unserved: Container[Kind] = _NO_KINDS) -> GangMarks:
    """Return the gang marks of a tenant pod.

    A pod without marks is a gang of one.

    `found` holds the existing objects among `gang_references`. If the object that declares the pod count is missing,
    `missing_reference` names it. `unserved` are kinds that the tenant's API server does not serve: a mark that needs an
    object of such a kind counts only if the pod has no other mark.

    Raises:
        MarkError: the marks contradict each other or are invalid.
    """
    view = GangPodView(pod)
    annotations = read_own_annotations(view)
    integration, declaration = _select_integration(PodContext(view, annotations, found.get, unserved))
    required, preferred = _topology_levels(view)
    controller = integration.title if integration is not None else ""
    limit, source = _smallest_limit(
        (
            (annotations.run_limit, f"annotation {GANG_RUN_LIMIT_ANNOTATION}"),
            (declaration.run_limit if declaration is not None else None, f"activeDeadlineSeconds of its {controller}"),
            *_run_limits(view),
        )
    )
    if integration is None or declaration is None or declaration.is_standalone:
        _check_unnamed(annotations)
        marks = None
    else:
        marks = apply_annotations(
            declaration,
            annotations,
            group=f"{view.namespace}/{integration.key}/{declaration.name}",
            integration=integration.title,
        )
        marks = add_controller(marks, view, found.get, named=integration in _EXPLICIT_INTEGRATIONS)
        marks = replace(
            marks,
            is_unserved=marks.missing_reference is not None and marks.missing_reference.object_kind in unserved,
        )
    return replace(
        marks or GangMarks(group=f"{view.namespace}/pod/{view.unique_id}"),
        required_level=(declaration.required_level if declaration is not None else "") or required,
        preferred_level=preferred,
        run_limit=limit,
        run_limit_source=source,
        checkpoint=annotations.checkpoint or 0.0,
        restart_cost=annotations.restart_cost or 0.0,
    )


def gang_references(pod: Object, unserved: Container[Kind] = _NO_KINDS) -> tuple[Reference, ...]:
    """Return the objects that `read_marks` needs for a pod. `unserved` are kinds that the API server does not serve."""
    wanted: dict[Reference, None] = {}

    def note(reference: Reference) -> None:
        wanted[reference] = None

    view = GangPodView(pod)
    try:
        context = PodContext(view, read_own_annotations(view), note, unserved)
        integration, declaration = _select_integration(context)
        job = job_reference(view)
        if integration is not None and declaration is not None and not declaration.is_standalone and job is not None:
            note(job)
        if view.spec.get("schedulingGroup"):
            # Whether the PodGroup or its Job declares the gang depends on the PodGroup.
            next((integration for integration in _INFERRED_INTEGRATIONS if integration.read(context) is not None), None)
    except MarkError:
        # read_marks raises the same error for the user. Until then it needs no more objects.
        return tuple(wanted)
    return tuple(wanted)


def _select_integration(context: PodContext) -> tuple[Integration | None, GangDeclaration | None]:
    """Return the first integration that applies to a pod, with its declaration.

    An integration whose object is of a kind that is not served comes last: the pod waits, and its message names the
    object.

    Raises:
        MarkError: two integrations declare different minimums.
    """
    first: tuple[Integration | None, GangDeclaration | None] = None, None
    fallback: tuple[Integration | None, GangDeclaration | None] = None, None
    for integration in INTEGRATIONS:
        decided = first[1]
        if decided is not None and integration not in _EXPLICIT_INTEGRATIONS:
            break
        declaration = integration.read(context)
        if declaration is None:
            continue
        if context.needs_unserved_kind(declaration):
            fallback = fallback if fallback[1] is not None else (integration, declaration)
        elif decided is None:
            first = integration, declaration
        elif None not in (decided.minimum, declaration.minimum) and decided.minimum != declaration.minimum:
            problem = f"contradicts {decided.minimum_source} ({decided.minimum})"
            raise MarkError(
                declaration.minimum_source,
                declaration.minimum,
                problem,
                remedy="remove one of the two from the pod",
            )
    return first if first[1] is not None else fallback


def _check_unnamed(annotations: OwnAnnotations) -> None:
    """Raise MarkError for counts of a gang that has no name, instead of ignoring them."""
    if annotations.name == JOB_OWNER:
        remedy = "set it in the pod template of a Job, or set another name and a size"
        raise MarkError(
            NAME_MARK, annotations.name, "means the pods of the pod's Job, but no Job created the pod", remedy=remedy
        )
    if annotations.first_number is not None:
        mark, number = annotations.first_number
        remedy = f"set the {NAME_MARK} on all pods of the gang"
        raise MarkError(mark, number, "counts the pods of a gang without a name", remedy=remedy)


def _topology_levels(pod: GangPodView) -> tuple[str, str]:
    required, preferred = pod.annotations.get(_REQUIRED_TOPOLOGY, ""), pod.annotations.get(_PREFERRED_TOPOLOGY, "")
    if required and preferred:
        problem = f"contradicts {_PREFERRED_TOPOLOGY} ({preferred})"
        raise MarkError(
            f"annotation {_REQUIRED_TOPOLOGY}", required, problem, remedy="remove one of the two from the pod"
        )
    return required, preferred


_DeclaredLimit = tuple[float | None, str]
"""Run limit in seconds, and what declares it."""


def _run_limits(pod: GangPodView) -> Iterable[_DeclaredLimit]:
    yield pod.run_limit, "activeDeadlineSeconds of the pod"
    text, mark = pod.labels.get(_LONGEST_RUN), f"label {_LONGEST_RUN}"
    yield (None if text is None else mark_values.parse_duration(mark, text)), mark


def _smallest_limit(limits: Iterable[_DeclaredLimit]) -> _DeclaredLimit:
    """Return the smallest limit, of equal ones the first."""
    known = [(limit, source) for limit, source in limits if limit is not None]
    return min(known, key=lambda each: each[0], default=(None, ""))


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
