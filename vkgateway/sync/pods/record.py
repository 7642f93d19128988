"""One pod's whole situation, reduced to what the table needs to know."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class TenantPodState(StrEnum):
    """What the tenant's API server holds under the pod's name."""

    ABSENT = "absent"
    GATED = "gated"
    UNBOUND = "unbound"
    BOUND = "bound"
    DELETING = "deleting"
    TERMINAL = "terminal"
    TERMINAL_DELETING = "terminal and deleting"


class ComputePodState(StrEnum):
    """What the compute cluster holds for that tenant pod."""

    UNKNOWN = "unknown"
    """The cluster cannot be reached, or its list is not complete yet."""
    ABSENT = "absent"
    LIVE = "live"
    DELETING = "deleting"
    TERMINAL = "terminal"
    TERMINAL_DELETING = "terminal and deleting"
    STALE = "stale"
    """It belongs to an earlier tenant pod of the same name."""
    FOREIGN = "foreign"
    """The name is taken by something that is not ours."""


class DependencyState(StrEnum):
    """What the tenant pod refers to, and whether policy lets it run at all."""

    READY = "ready"
    MISSING = "missing"
    REFUSED = "refused"


class AdmissionState(StrEnum):
    """What the arbiter says of the pod."""

    FREE = "free"
    HELD = "held"
    REJECTED = "rejected"
    """It was put by hand on a virtual node that has no room for it."""
    ADMITTED = "admitted"
    EVICTING = "evicting"
    PENDING = "pending"
    """It governs the pod, and has said nothing yet."""
    RETAKEN = "retaken"
    """No node took the pod in time: it is to be removed below, and placed anew."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """One tenant pod as the world stands; the table's whole input.

    `has_run` says that the tenant pod's status already tells of containers: such a pod whose compute pod is gone
    without a trace (somebody took its finalizer off by hand) has lived, and must not be started a second time.
    `ended_by_platform` says that the platform ended the tenant pod (an eviction, a drain). `blocks_replacement` says so
    of one whose controller makes another only once it does not exist any more.
    `list_complete` says that the tenant's list of pods is known to be whole, so that absence is a fact.
    """

    tenant: TenantPodState
    compute: ComputePodState
    dependencies: DependencyState = DependencyState.READY
    admission: AdmissionState = AdmissionState.FREE
    has_run: bool = False
    ended_by_platform: bool = False
    blocks_replacement: bool = False
    list_complete: bool = True


class Instruction(StrEnum):
    """What the table may ask of the hands; each is idempotent and repeats nothing that is already so."""

    FORGET = "forget"
    WAIT = "wait"
    DELETE_COMPUTE = "delete the compute pod with its own grace"
    DELETE_COMPUTE_LIKE_TENANT = "delete the compute pod with the tenant's remaining grace"
    DELETE_AT_DEADLINE = "delete the compute pod once the notice has run out"
    DELETE_STALE = "delete the stale compute pod; its end concerns nobody"
    RELEASE = "take the finalizer off the compute pod"
    NOTICE = "tell of the coming eviction, once"
    WITHDRAW = "take a notice off that does not hold any more"
    PROMOTE = "write down below that it does not borrow any more, and tell so"
    TAKE_BACK = "mark the compute pod as one that stands for nobody, and delete it"
    REPORT_TAKEN = "tell that the name is taken below, and back off"
    REPORT_MISSING = "tell what is missing"
    REPORT_HELD = "tell why it is held"
    REPORT_UNDO = "log that the end cannot be undone above"
    REJECT = "fail the tenant pod as a kubelet does that has no room for it"
    REFUSE = "fail the tenant pod with the rule it breaks"
    LOSE = "fail the tenant pod: it ran, and nothing of it is left below"
    CREATE = "create namespace, copies, token and compute pod, in this order"
    KEEP_LOGS = "keep the last lines of the logs of a pod that is deleted below, once"
    STATUS_UP = "write the status up if it differs"
    SPEC_DOWN = "write mutable fields and refreshed copies down if they differ"
    READINESS_DOWN = "write the conditions of readiness gates down if they differ"
    REFRESH = "keep the tokens of a pod that is ending fresh"
    FINISH = "write the final status up"
    CLOSE = "fail the tenant pod that is to go: nothing of it is below, and it never ended"
    REMOVE_REPLACED = "remove the tenant pod a while after its end, if its controller has replaced it"
    REMOVE_TENANT = "remove the tenant pod (grace 0, its uid)"
