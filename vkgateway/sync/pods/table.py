"""The table of a pod's life: from a record to the next instructions. Pure; first match wins; a gap is an error."""

from __future__ import annotations

from dataclasses import dataclass

from vkgateway.sync.pods.record import AdmissionState as A
from vkgateway.sync.pods.record import ComputePodState as C
from vkgateway.sync.pods.record import DependencyState as D
from vkgateway.sync.pods.record import Instruction as I
from vkgateway.sync.pods.record import Record
from vkgateway.sync.pods.record import TenantPodState as T


class UncoveredRecordError(Exception):
    """No row of the table covers a record: a defect of the table or of the observer, never a shrug."""

    def __init__(self, record: Record) -> None:
        super().__init__(f"no row of the pod table covers {record}")
        self.record = record


@dataclass(frozen=True, slots=True)
class Row:
    """One line of the table; `None` in a column matches anything."""

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
        """Whether every column of this row allows the record's value."""
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
    # Nothing is failed, deleted or created on what cannot be seen.
    Row(None, _compute_states(C.UNKNOWN), (I.WAIT,)),
    # Nothing of this pod runs below, and nothing should.
    Row(_NOT_BOUND, _compute_states(C.ABSENT, C.FOREIGN), (I.FORGET,)),
    # Left over from a tenant pod that is gone: only once the tenant's list proves that it is gone.
    Row(_tenant_states(T.ABSENT), None, (I.WAIT,), list_complete=False),
    Row(_tenant_states(T.ABSENT), _compute_states(C.LIVE, C.STALE), (I.DELETE_COMPUTE,)),
    Row(_tenant_states(T.ABSENT), _compute_states(C.DELETING), (I.WAIT,)),
    Row(_tenant_states(T.ABSENT), _compute_states(C.TERMINAL, C.TERMINAL_DELETING), (I.RELEASE, I.DELETE_COMPUTE)),
    # An earlier pod of the same name, removed above by force: out of the way first, whatever the new one is.
    Row(None, _compute_states(C.STALE), (I.DELETE_STALE,)),
    # The name below belongs to somebody else: never touched.
    Row(_tenant_states(T.BOUND), _compute_states(C.FOREIGN), (I.REPORT_TAKEN,)),
    Row(_tenant_states(T.DELETING), _compute_states(C.FOREIGN), (I.CLOSE, I.REMOVE_TENANT)),
    Row(_tenant_states(T.TERMINAL_DELETING), _compute_states(C.FOREIGN), (I.REMOVE_TENANT,)),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.FOREIGN), (I.WAIT,)),
    # Bound, and not below yet.
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.LOSE,), has_run=True),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.REFUSE,), dependencies=frozenset({D.REFUSED})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.REPORT_MISSING,), dependencies=frozenset({D.MISSING})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.REJECT,), admission=frozenset({A.REJECTED})),
    Row(
        _tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.REPORT_HELD,), admission=frozenset({A.HELD, A.EVICTING})
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.WAIT,), admission=frozenset({A.PENDING, A.RETAKEN})),
    Row(_tenant_states(T.BOUND), _compute_states(C.ABSENT), (I.CREATE,)),
    # Bound and running below.
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.LIVE),
        (I.STATUS_UP, I.READINESS_DOWN, I.NOTICE, I.DELETE_AT_DEADLINE),
        admission=frozenset({A.EVICTING}),
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.LIVE), (I.TAKE_BACK,), admission=frozenset({A.RETAKEN})),
    Row(
        _tenant_states(T.BOUND),
        _compute_states(C.LIVE),
        (I.STATUS_UP, I.READINESS_DOWN, I.WITHDRAW, I.PROMOTE, I.SPEC_DOWN),
    ),
    Row(_tenant_states(T.BOUND), _compute_states(C.DELETING), (I.STATUS_UP, I.READINESS_DOWN, I.KEEP_LOGS, I.REFRESH)),
    Row(_tenant_states(T.BOUND), _compute_states(C.TERMINAL_DELETING), (I.FINISH, I.RELEASE)),
    Row(_tenant_states(T.BOUND), _compute_states(C.TERMINAL), (I.FINISH,)),
    # Final above: what still runs below cannot be undone above. This holds for a final pod being deleted, too.
    Row(_TENANT_TERMINAL, _compute_states(C.LIVE), (I.REPORT_UNDO, I.DELETE_COMPUTE)),
    Row(_TENANT_TERMINAL, _compute_states(C.DELETING), (I.WAIT,)),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.TERMINAL_DELETING), (I.RELEASE,)),
    # Its end stands above, and nothing else will remove it.
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT), (I.REMOVE_TENANT,), blocks_replacement=True),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT), (I.REMOVE_REPLACED,), ended_by_platform=True),
    Row(_tenant_states(T.TERMINAL), _compute_states(C.ABSENT, C.TERMINAL), (I.WAIT,)),
    # Deleted above: gone above only when it is gone below.
    Row(_tenant_states(T.DELETING), _compute_states(C.ABSENT), (I.CLOSE, I.REMOVE_TENANT)),
    Row(_tenant_states(T.TERMINAL_DELETING), _compute_states(C.ABSENT), (I.REMOVE_TENANT,)),
    Row(_tenant_states(T.DELETING), _compute_states(C.LIVE), (I.DELETE_COMPUTE_LIKE_TENANT,)),
    Row(
        _tenant_states(T.DELETING),
        _compute_states(C.DELETING),
        (I.DELETE_COMPUTE_LIKE_TENANT, I.STATUS_UP, I.READINESS_DOWN, I.REFRESH),
    ),
    Row(_TENANT_DELETING, _COMPUTE_ENDED, (I.FINISH, I.RELEASE, I.DELETE_COMPUTE, I.REMOVE_TENANT)),
)
"""`DELETE_COMPUTE` and its kin do nothing where the compute pod is already being deleted with no longer a grace, and
`FINISH` nothing where the final status already stands above; so rows may name them without a second look."""

IMPOSSIBLE: tuple[Row, ...] = (
    # A pod that is not bound was never sent below, and binding cannot be undone.
    Row(_tenant_states(T.GATED, T.UNBOUND), _compute_states(C.LIVE, C.DELETING, C.TERMINAL, C.TERMINAL_DELETING), ()),
)
"""Records that no order of events can bring about; they are errors when they come all the same."""

_MEMO: dict[Record, tuple[I, ...]] = {}


def find_instructions(record: Record) -> tuple[I, ...]:
    """The instructions for a record, in the order in which they must be carried out.

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
