"""The ways in which a gang is said, in order of precedence, and the reading of a pod's marks by them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import mark_values
from vkgateway.translate.gangs.application_clusters import read_ray, read_spark
from vkgateway.translate.gangs.controllers import add_controller
from vkgateway.translate.gangs.declarations import GangDeclaration, PodContext, apply_annotations
from vkgateway.translate.gangs.job_pods import job_reference
from vkgateway.translate.gangs.jobset_lws import read_jobset, read_leader_worker_set
from vkgateway.translate.gangs.marks import FoundObjects, GangMarks, Kind, MarkError, Reference
from vkgateway.translate.gangs.own_annotations import JOB_OWNER, NAME_MARK, OwnAnnotations, read_own_annotations
from vkgateway.translate.gangs.plain_jobs import read_job
from vkgateway.translate.gangs.pod_groups import (
    read_coscheduling,
    read_kueue,
    read_scheduling_group,
    read_vkgateway,
    read_volcano,
    read_workload,
)
from vkgateway.translate.gangs.pod_view import GangPodView
from vkgateway.translate.gangs.training_jobs import read_training_job

_REQUIRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED_TOPOLOGY: Final = "kueue.x-k8s.io/podset-preferred-topology"
_LONGEST_RUN: Final = "kueue.x-k8s.io/max-exec-time-seconds"


@dataclass(frozen=True, slots=True)
class Integration:
    """One way of saying a gang: a short name for keys, one for people, its reader, and where it is documented."""

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
"""Ways in which a person writes down a group and its minimum."""

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
"""Ways in which it follows from what a controller makes."""

INTEGRATIONS: Final = (*_EXPLICIT_INTEGRATIONS, *_INFERRED_INTEGRATIONS)
"""First what a person wrote down, ours before all; then what operators put on their pods; a plain Job is last."""


_NO_KINDS: Final[frozenset[Kind]] = frozenset()


def read_marks(pod: Object, found: FoundObjects, unserved: Container[Kind] = _NO_KINDS) -> GangMarks:
    """What a tenant's pod says of its gang; a pod that says nothing stands alone.

    `found` holds the objects beside it that `gang_references` names and that exist. Without the one that says how many
    pods the gang takes, `waits_for` names it. `unserved` are kinds that the tenant's API server does not serve: a mark
    that needs an object of such a kind counts only where no other mark says anything.

    Raises:
        MarkError: its marks contradict each other or make no sense.
    """
    view = GangPodView(pod)
    own = read_own_annotations(view)
    way, said = _select_integration(PodContext(view, own, found.get, unserved))
    required, preferred = _topology_levels(view)
    limits = (own.run_limit, None if said is None else said.run_limit, *_run_limits(view))
    if way is None or said is None or said.is_standalone:
        _check_unnamed(own)
        counted = None
    else:
        counted = apply_annotations(said, own, group=f"{view.namespace}/{way.key}/{said.name}", way=way.title)
        counted = add_controller(counted, view, found.get, named=way in _EXPLICIT_INTEGRATIONS)
        counted = replace(
            counted,
            is_unserved=counted.missing_reference is not None and counted.missing_reference.object_kind in unserved,
        )
    return replace(
        counted or GangMarks(group=f"{view.namespace}/pod/{view.unique_id}"),
        required_level=(said.required_level if said is not None else "") or required,
        preferred_level=preferred,
        run_limit=_smallest_limit(limits),
        checkpoint=own.checkpoint or 0.0,
        restart_cost=own.restart_cost or 0.0,
    )


def gang_references(pod: Object, unserved: Container[Kind] = _NO_KINDS) -> tuple[Reference, ...]:
    """The objects beside a pod that `read_marks` wants to see, where these kinds are not served."""
    wanted: dict[Reference, None] = {}

    def note(reference: Reference) -> None:
        wanted[reference] = None

    view = GangPodView(pod)
    try:
        asked = PodContext(view, read_own_annotations(view), note, unserved)
        way, said = _select_integration(asked)
        job = job_reference(view)
        if way is not None and said is not None and not said.is_standalone and job is not None:
            note(job)
        if view.spec.get("schedulingGroup"):
            # Only the group itself tells whether it is what counts, or what is said of its Job.
            next((way for way in _INFERRED_INTEGRATIONS if way.read(asked) is not None), None)
    except MarkError:
        # What is wrong is told by read_marks; until then it needs no more objects than these.
        return tuple(wanted)
    return tuple(wanted)


def _select_integration(asked: PodContext) -> tuple[Integration | None, GangDeclaration | None]:
    """What the first way says that says anything; where it writes down a minimum, no other may write down another.

    A way whose object is of a kind that is not served is the last resort: the pod waits, and is told for what.

    Raises:
        MarkError: two ways contradict each other.
    """
    first: tuple[Integration | None, GangDeclaration | None] = None, None
    passed: tuple[Integration | None, GangDeclaration | None] = None, None
    for way in INTEGRATIONS:
        decided = first[1]
        if decided is not None and way not in _EXPLICIT_INTEGRATIONS:
            break
        said = way.read(asked)
        if said is None:
            continue
        if asked.needs_unserved_kind(said):
            passed = passed if passed[1] is not None else (way, said)
        elif decided is None:
            first = way, said
        elif None not in (decided.minimum, said.minimum) and decided.minimum != said.minimum:
            problem = f"contradicts {decided.minimum_source} ({decided.minimum})"
            raise MarkError(said.minimum_source, said.minimum, problem, way_out="take one of the two marks off the pod")
    return first if first[1] is not None else passed


def _check_unnamed(own: OwnAnnotations) -> None:
    """Numbers of a gang that is not named are told, rather than passed over."""
    if own.name == JOB_OWNER:
        way_out = "set it in the pod template of a Job, or give the gang another name and a size"
        raise MarkError(NAME_MARK, own.name, "means the gang of the pod's job, but no job made it", way_out=way_out)
    if own.first_number is not None:
        mark, number = own.first_number
        way_out = f"name it with the {NAME_MARK} on all its pods"
        raise MarkError(mark, number, "counts a gang, but no mark says which", way_out=way_out)


def _topology_levels(pod: GangPodView) -> tuple[str, str]:
    required, preferred = pod.annotations.get(_REQUIRED_TOPOLOGY, ""), pod.annotations.get(_PREFERRED_TOPOLOGY, "")
    if required and preferred:
        problem = f"contradicts {_PREFERRED_TOPOLOGY} ({preferred})"
        raise MarkError(
            f"annotation {_REQUIRED_TOPOLOGY}", required, problem, way_out="take one of the two off the pod"
        )
    return required, preferred


def _run_limits(pod: GangPodView) -> Iterable[float | None]:
    yield pod.run_limit
    text = pod.labels.get(_LONGEST_RUN)
    yield None if text is None else mark_values.parse_duration(f"label {_LONGEST_RUN}", text)


def _smallest_limit(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)
