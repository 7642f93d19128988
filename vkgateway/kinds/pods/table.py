"""Pod table: instructions for each record. Pure. The first matching row applies; a record without a row is an error."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.kinds.pods.record import ComputePodState as C
from vkgateway.kinds.pods.record import DependencyState as D
from vkgateway.kinds.pods.record import Instruction as I
from vkgateway.kinds.pods.record import Record
from vkgateway.kinds.pods.record import TenantPodState as T
from vkgateway.scheduler.core.queueing.admission import AdmissionState as A


class UncoveredRecordError(Exception):
    """No row of the table covers a record: a defect of the table or of the observer."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"no row of the pod table covers {record}")
        self.record = record


@dataclass(frozen=True, slots=True)
class Row:
    """Row of the table; `None` in a column matches any value."""

    tenant: frozenset[T] | None
    compute: frozenset[C] | None
    instructions: tuple[I, ...]
    dependencies: frozenset[D] | None = None
    admission: frozenset[A] | None = None
    has_run: bool | None = None
    ended_by_platform: bool | None = None
    blocks_replacement: bool | None = None
    list_complete: bool | None = None

    def matches_record(self, record: Record) -> bool:
        """Return whether every column of this row matches the record."""
        return (
            (self.tenant is None or record.tenant in self.tenant)
            and (self.compute is None or record.compute in self.compute)
            and (self.dependencies is None or record.dependencies in self.dependencies)
            and (self.admission is None or record.admission in self.admission)
            and (self.has_run is None or record.has_run is self.has_run)
            and (self.ended_by_platform is None or record.ended_by_platform is self.ended_by_platform)
            and (self.blocks_replacement is None or record.blocks_replacement is self.blocks_replacement)
            and (self.list_complete is None or record.list_complete is self.list_complete)
        )


_NOT_BOUND = frozenset({T.ABSENT, T.GATED, T.UNBOUND})
_TENANT_TERMINAL = frozenset({T.TERMINAL, T.TERMINAL_DELETING})
_TENANT_DELETING = frozenset({T.DELETING, T.TERMINAL_DELETING})
_COMPUTE_ENDED = frozenset({C.TERMINAL, C.TERMINAL_DELETING})


def _tenant_states(*values: T) -> frozenset[T]:
    return frozenset(values)


def _compute_states(*values: C) -> frozenset[C]:
    return frozenset(values)


ROWS: tuple[Row, ...] = (
    # While the compute cluster cannot be trusted, nothing is failed, deleted or created.
    Row(None, _compute_states(C.UNKNOWN), (I.WAIT,)),
    # The pod has no compute pod, and needs none.
    Row(_NOT_BOUND, _compute_states(C.ABSENT, C.FOREIGN), (I.FORGET,)),
    # The tenant pod was deleted. Only a complete list proves that.
    Row(_tenant_states(T.ABSENT), None, (I.WAIT,), list_complete=False),
    Row(_tenant_states(T.ABSENT), _compute_states(C.LIVE, C.STALE), (I.DELETE_COMPUTE,)),
    Row(_tenant_states(T.ABSENT), _compute_states(C.DELETING), (I.WAIT,)),
    Row(
        _tenant_states(T.ABSENT),
        _compute_states(C.TERMINAL, C.TERMINAL_DELETING),
        (I.REMOVE_FINALIZER, I.DELETE_COMPUTE),
    ),
    # Compute pod of an earlier, force-deleted tenant pod of the same name: deleted first, whatever the new pod's state.
    Row(None, _compute_states(C.STALE), (I.DELETE_STALE,)),
    # An object of another owner has the name in the compute cluster; the gateway never touches it.
    Row(_tenant_states(T.BOUND), _compute_states(C.FOREIGN), (I.REPORT_NAME_TAKEN,)),
    Row(_tenant_states(T.DELETING), _compute_states(C.FOREIGN), (I.END_DELETED, I.DELETE_TENANT)),
    Row(_tenant_states(T.TERMINAL_DELETING), _compute_states(C.FOREIGN), (I.DELETE_TENANT,)),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.FOREIGN), (I.WAIT,)),
    # Bound, without a compute pod.
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.FAIL_LOST,), has_run=True),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.FAIL_REFUSED,), dependencies=frozenset({D.REFUSED})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.REPORT_MISSING,), dependencies=frozenset({D.MISSING})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.FAIL_REJECTED,), admission=frozenset({A.REJECTED})),
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.ABSENT),
        (I.REPORT_PENDING,),
        admission=frozenset({A.HELD, A.EVICTING}),
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.WAIT,), admission=frozenset({A.PENDING, A.RETAKEN})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.CREATE,)),
    # Bound and running in the compute cluster.
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.LIVE),
        (I.UPDATE_STATUS, I.FORWARD_READINESS, I.GIVE_NOTICE, I.DELETE_AT_DEADLINE),
        admission=frozenset({A.EVICTING}),
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.LIVE), (I.REVERT,), admission=frozenset({A.RETAKEN})),
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.LIVE),
        (I.UPDATE_STATUS, I.FORWARD_READINESS, I.WITHDRAW_NOTICE, I.MARK_PROMOTED, I.FORWARD_CHANGES),
    ),
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.DELETING),
        (I.UPDATE_STATUS, I.FORWARD_READINESS, I.KEEP_LOGS, I.REFRESH_TOKENS, I.EVICT_TENANT),
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.TERMINAL_DELETING), (I.WRITE_END, I.REMOVE_FINALIZER)),
    Row(_tenant_states(T.BOUND), _compute_states(C.TERMINAL), (I.WRITE_END,)),
    # Final in the tenant cluster, which cannot be undone. This includes final pods that are being deleted.
    Row(_TENANT_TERMINAL, _compute_states(C.LIVE), (I.REPORT_UNDO, I.DELETE_COMPUTE)),
    Row(_TENANT_TERMINAL, _compute_states(C.DELETING), (I.WAIT,)),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.TERMINAL_DELETING), (I.REMOVE_FINALIZER,)),
    # The end is written, and no controller will remove the tenant pod.
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT), (I.DELETE_TENANT,), blocks_replacement=True),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT), (I.REMOVE_REPLACED,), ended_by_platform=True),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT), (I.WAIT,)),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.TERMINAL), (I.WRITE_END,)),
    # Deleted in the tenant cluster: the tenant pod is removed only after its compute pod.
    Row(_tenant_states(T.DELETING), _compute_states(C.ABSENT), (I.END_DELETED, I.DELETE_TENANT)),
    Row(_tenant_states(T.TERMINAL_DELETING), _compute_states(C.ABSENT), (I.DELETE_TENANT,)),
    Row(_tenant_states(T.DELETING), _compute_states(C.LIVE), (I.DELETE_LIKE_TENANT,)),
    Row(
        _tenant_states(T.DELETING),
        _compute_states(C.DELETING),
        (I.DELETE_LIKE_TENANT, I.UPDATE_STATUS, I.FORWARD_READINESS, I.REFRESH_TOKENS),
    ),
    Row(_TENANT_DELETING, _COMPUTE_ENDED, (I.WRITE_END, I.REMOVE_FINALIZER, I.DELETE_COMPUTE, I.DELETE_TENANT)),
)
"""`DELETE_COMPUTE` and similar instructions do nothing if the compute pod is being deleted with the same or a shorter
grace period, and `WRITE_END` does nothing if the final status is written. Rows may therefore name them unconditionally.
"""

IMPOSSIBLE: tuple[Row, ...] = (
    # A pod that is not bound was never forwarded, and a binding cannot be undone.
    Row(_tenant_states(T.GATED, T.UNBOUND), _compute_states(C.LIVE, C.DELETING, C.TERMINAL, C.TERMINAL_DELETING), ()),
)
"""Records that no order of events can cause; they are errors if they occur."""

_MEMO: dict[Record, tuple[I, ...]] = {}


def find_instructions(record: Record) -> tuple[I, ...]:
    """Return the instructions for a record, in the order of execution.

    Raises:
        UncoveredRecordError: no row covers the record.
    """
    found = _MEMO.get(record)
    if found is None:
        found = _MEMO[record] = _match_row(record)
    return found


def _match_row(record: Record) -> tuple[I, ...]:
    for row in ROWS:
        if row.matches_record(record):
            return row.instructions
    raise UncoveredRecordError(record)
