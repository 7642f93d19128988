"""The ways in which a gang is said, in order of precedence, and the reading of a pod's marks by them."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable
from dataclasses import dataclass, replace
from typing import Final

from vkgateway.model.objects import Object
from vkgateway.translate.gangs import values
from vkgateway.translate.gangs.clusters import ray, spark
from vkgateway.translate.gangs.controllers import with_controller
from vkgateway.translate.gangs.groups import annotated, coscheduling, kueue, scheduling_group, volcano, workload
from vkgateway.translate.gangs.jobpods import job_reference
from vkgateway.translate.gangs.jobs import job
from vkgateway.translate.gangs.marks import Found, GangMarks, Kind, MarkError, Reference
from vkgateway.translate.gangs.own import NAME, OWNER, Own, read_own
from vkgateway.translate.gangs.said import Asked, Said, refine
from vkgateway.translate.gangs.sets import jobset, leader_worker_set
from vkgateway.translate.gangs.training import training
from vkgateway.translate.gangs.view import PodView

_REQUIRED: Final = "kueue.x-k8s.io/podset-required-topology"
_PREFERRED: Final = "kueue.x-k8s.io/podset-preferred-topology"
_LONGEST_RUN: Final = "kueue.x-k8s.io/max-exec-time-seconds"


@dataclass(frozen=True, slots=True)
class Way:
    """One way of saying a gang: a short name for keys, one for people, its reader, and where it is documented."""

    key: str
    title: str
    read: Callable[[Asked], Said | None]
    source: str


_WRITTEN: Final = (
    Way("gang", "vkgateway.io/gang", annotated, "docs/concepts/gangs.md"),
    Way(
        "podgroup",
        "Kubernetes PodGroup",
        scheduling_group,
        "https://kubernetes.io/docs/concepts/workloads/pods/scheduling-group/",
    ),
    Way(
        "workload",
        "Kubernetes Workload",
        workload,
        "https://kubernetes.io/docs/concepts/workloads/pods/workload-reference",
    ),
    Way("volcano", "Volcano PodGroup", volcano, "https://volcano.sh/en/docs/podgroup/"),
    Way(
        "coscheduling",
        "coscheduling PodGroup",
        coscheduling,
        "https://scheduler-plugins.sigs.k8s.io/docs/plugins/coscheduling/",
    ),
    Way("kueue", "Kueue pod group", kueue, "https://kueue.sigs.k8s.io/docs/tasks/run/plain_pods/"),
)
"""Ways in which a person writes down a group and its minimum."""

_CONCLUDED: Final = (
    Way(
        "training",
        "Kubeflow training job",
        training,
        "https://github.com/kubeflow/training-operator/blob/master/pkg/apis/kubeflow.org/v1/common_types.go",
    ),
    Way("ray", "Ray cluster", ray, "https://docs.ray.io/en/latest/cluster/kubernetes/user-guides/config.html"),
    Way("spark", "Spark application", spark, "https://spark.apache.org/docs/latest/running-on-kubernetes.html"),
    Way("jobset", "JobSet", jobset, "https://jobset.sigs.k8s.io/docs/reference/jobset.v1alpha2/"),
    Way(
        "lws",
        "LeaderWorkerSet",
        leader_worker_set,
        "https://lws.sigs.k8s.io/docs/reference/labels-annotations-and-environment-variables/",
    ),
    Way("job", "Job", job, "https://kubernetes.io/docs/concepts/workloads/controllers/job/"),
)
"""Ways in which it follows from what a controller makes."""

WAYS: Final = (*_WRITTEN, *_CONCLUDED)
"""First what a person wrote down, ours before all; then what operators put on their pods; a plain Job is last."""


_NONE: Final[frozenset[Kind]] = frozenset()


def read_marks(pod: Object, found: Found, unserved: Container[Kind] = _NONE) -> GangMarks:
    """What a tenant's pod says of its gang; a pod that says nothing stands alone.

    `found` holds the objects beside it that `references` names and that exist. Without the one that says how many
    pods the gang takes, `waits_for` names it. `unserved` are kinds that the tenant's API server does not serve: a mark
    that needs an object of such a kind counts only where no other mark says anything.

    Raises:
        MarkError: its marks contradict each other or make no sense.
    """
    view = PodView(pod)
    own = read_own(view)
    way, said = _first(Asked(view, own, found.get, unserved))
    required, preferred = _levels(view)
    limits = (own.run_limit, None if said is None else said.run_limit, *_limits(view))
    if way is None or said is None or said.alone:
        _nothing_left_over(own)
        counted = None
    else:
        counted = refine(said, own, group=f"{view.namespace}/{way.key}/{said.name}", way=way.title)
        counted = with_controller(counted, view, found.get, named=way in _WRITTEN)
        counted = replace(counted, unserved=counted.waits_for is not None and counted.waits_for.of in unserved)
    return replace(
        counted or GangMarks(group=f"{view.namespace}/pod/{view.identity}"),
        required_level=(said.required_level if said is not None else "") or required,
        preferred_level=preferred,
        run_limit=_least(limits),
        checkpoint=own.checkpoint or 0.0,
        restart_cost=own.restart_cost or 0.0,
    )


def references(pod: Object, unserved: Container[Kind] = _NONE) -> tuple[Reference, ...]:
    """The objects beside a pod that `read_marks` wants to see, where these kinds are not served."""
    wanted: dict[Reference, None] = {}

    def note(reference: Reference) -> None:
        wanted[reference] = None

    view = PodView(pod)
    try:
        asked = Asked(view, read_own(view), note, unserved)
        way, said = _first(asked)
        job = job_reference(view)
        if way is not None and said is not None and not said.alone and job is not None:
            note(job)
        if view.spec.get("schedulingGroup"):
            # Only the group itself tells whether it is what counts, or what is said of its Job.
            next((way for way in _CONCLUDED if way.read(asked) is not None), None)
    except MarkError:
        # What is wrong is told by read_marks; until then it needs no more objects than these.
        return tuple(wanted)
    return tuple(wanted)


def _first(asked: Asked) -> tuple[Way | None, Said | None]:
    """What the first way says that says anything; where it writes down a minimum, no other may write down another.

    A way whose object is of a kind that is not served is the last resort: the pod waits, and is told for what.

    Raises:
        MarkError: two ways contradict each other.
    """
    first: tuple[Way | None, Said | None] = None, None
    passed: tuple[Way | None, Said | None] = None, None
    for way in WAYS:
        decided = first[1]
        if decided is not None and way not in _WRITTEN:
            break
        said = way.read(asked)
        if said is None:
            continue
        if asked.says_nothing(said):
            passed = passed if passed[1] is not None else (way, said)
        elif decided is None:
            first = way, said
        elif None not in (decided.minimum, said.minimum) and decided.minimum != said.minimum:
            problem = f"contradicts {decided.mark} ({decided.minimum})"
            raise MarkError(said.mark, said.minimum, problem, way_out="take one of the two marks off the pod")
    return first if first[1] is not None else passed


def _nothing_left_over(own: Own) -> None:
    """Numbers of a gang that is not named are told, rather than passed over."""
    if own.name == OWNER:
        way_out = "set it in the pod template of a Job, or give the gang another name and a size"
        raise MarkError(NAME, own.name, "means the gang of the pod's job, but no job made it", way_out=way_out)
    if own.first_number is not None:
        mark, number = own.first_number
        way_out = f"name it with the {NAME} on all its pods"
        raise MarkError(mark, number, "counts a gang, but no mark says which", way_out=way_out)


def _levels(pod: PodView) -> tuple[str, str]:
    required, preferred = pod.annotations.get(_REQUIRED, ""), pod.annotations.get(_PREFERRED, "")
    if required and preferred:
        problem = f"contradicts {_PREFERRED} ({preferred})"
        raise MarkError(f"annotation {_REQUIRED}", required, problem, way_out="take one of the two off the pod")
    return required, preferred


def _limits(pod: PodView) -> Iterable[float | None]:
    yield pod.run_limit
    text = pod.labels.get(_LONGEST_RUN)
    yield None if text is None else values.duration(f"label {_LONGEST_RUN}", text)


def _least(numbers: Iterable[float | None]) -> float | None:
    return min((number for number in numbers if number is not None), default=None)
