"""Input and output of the pod table: states, record and instructions."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from vkgateway.scheduler.core.queueing.admission import AdmissionState


class TenantPodState(StrEnum):
    """Tenant pod in the tenant's API server."""

    ABSENT = "absent"
    GATED = "gated"
    UNBOUND = "unbound"
    BOUND = "bound"
    DELETING = "deleting"
    TERMINAL = "terminal"
    TERMINAL_DELETING = "terminal and deleting"


class ComputePodState(StrEnum):
    """Compute pod of the tenant pod."""

    UNKNOWN = "unknown"
    """The cluster is unreachable, or its list is not complete yet."""
    ABSENT = "absent"
    LIVE = "live"
    DELETING = "deleting"
    TERMINAL = "terminal"
    TERMINAL_DELETING = "terminal and deleting"
    STALE = "stale"
    """The compute pod belongs to an earlier tenant pod of the same name."""
    FOREIGN = "foreign"
    """An object that does not belong to vkgateway has the name."""


class DependencyState(StrEnum):
    """Objects that the tenant pod refers to, and whether policy permits the pod."""

    READY = "ready"
    MISSING = "missing"
    REFUSED = "refused"


@dataclass(frozen=True, slots=True, kw_only=True)
class Record:
    """State of one tenant pod; the complete input of the pod table.

    `has_run` says that the tenant pod's status has container statuses. If the compute pod of such a pod is missing (its
    finalizer was removed manually), the pod must not be started a second time.

    `ended_by_platform` says that the platform ended the tenant pod by an eviction or a drain. `blocks_replacement` says
    the same of a pod whose controller replaces it only after its deletion.

    `list_complete` says that the tenant's pod list is complete, so that a missing pod does not exist.
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
    """Action that the executor carries out; each is idempotent and does nothing if its result exists already."""

    FORGET = "do nothing: the pod needs no compute pod"
    WAIT = "wait for a change"
    DELETE_COMPUTE = "delete the compute pod with its own grace period"
    DELETE_LIKE_TENANT = "delete the compute pod with the tenant pod's remaining grace period"
    DELETE_AT_DEADLINE = "delete the compute pod when the eviction notice has expired"
    DELETE_STALE = "delete the compute pod of an earlier tenant pod or a reverted one"
    REMOVE_FINALIZER = "remove the finalizer from the compute pod"
    GIVE_NOTICE = "write the eviction notice, once"
    WITHDRAW_NOTICE = "remove an eviction notice that does not apply any longer"
    MARK_PROMOTED = "record and report that the pod does not borrow any longer"
    REVERT = "mark the compute pod as reverted and delete it"
    REPORT_NAME_TAKEN = "report that the name is taken in the compute cluster, and back off"
    REPORT_MISSING = "report the missing objects"
    REPORT_PENDING = "report why the pod is held"
    REPORT_UNDO = "log that the end of the tenant pod cannot be undone"
    FAIL_REJECTED = "fail the tenant pod as a kubelet without free capacity does"
    FAIL_REFUSED = "fail the tenant pod with the policy rule that it violates"
    FAIL_LOST = "fail the tenant pod, because it has run and its compute pod no longer exists"
    CREATE = "create namespace, copies, tokens and compute pod, in this order"
    KEEP_LOGS = "record the last log lines of a compute pod that is being deleted, once"
    UPDATE_STATUS = "update the tenant pod's status if it differs"
    FORWARD_CHANGES = "forward mutable fields and tokens if they differ"
    FORWARD_READINESS = "forward the conditions of readiness gates if they differ"
    REFRESH_TOKENS = "refresh the tokens of a terminating pod"
    WRITE_END = "write the final status of the tenant pod"
    EVICT_TENANT = "delete the tenant pod with the compute pod's grace period, as an eviction in its own cluster does"
    END_DELETED = "fail the tenant pod that is being deleted without a compute pod"
    REMOVE_REPLACED = "remove the tenant pod a while after its end, if its controller has replaced it"
    DELETE_TENANT = "remove the tenant pod (grace period 0, its UID)"
