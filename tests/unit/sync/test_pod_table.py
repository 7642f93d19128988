"""Pod table: every possible record has a row, and the rows follow the contract."""

from __future__ import annotations

import itertools

import pytest

from vkgateway.kinds.pods import table
from vkgateway.kinds.pods.record import ComputePodState, DependencyState, Instruction, Record, TenantPodState
from vkgateway.scheduler.core.queueing.admission import AdmissionState


def every_record() -> list[Record]:
    return [
        Record(
            tenant=t,
            compute=c,
            dependencies=d,
            admission=a,
            has_run=has_run,
            ended_by_platform=ended or blocks,
            blocks_replacement=blocks,
            list_complete=complete,
        )
        for t, c, d, a, has_run, (ended, blocks), complete in itertools.product(
            TenantPodState,
            ComputePodState,
            DependencyState,
            AdmissionState,
            (False, True),
            ((False, False), (True, False), (True, True)),
            (False, True),
        )
    ]


def is_impossible(record: Record) -> bool:
    return any(row.matches_record(record) for row in table.IMPOSSIBLE)


def test_every_possible_record_has_a_row() -> None:
    uncovered = []
    for record in every_record():
        try:
            table.find_instructions(record)
        except table.UncoveredRecordError:
            uncovered.append(record)

    assert [record for record in uncovered if not is_impossible(record)] == []


def test_impossible_records_are_errors_with_the_record() -> None:
    record = Record(tenant=TenantPodState.UNBOUND, compute=ComputePodState.LIVE)

    with pytest.raises(table.UncoveredRecordError) as caught:
        table.find_instructions(record)

    assert caught.value.record == record


def test_every_row_is_reached() -> None:
    """A row that no record reaches would be an ineffective rule."""
    reached = {next((row for row in table.ROWS if row.matches_record(record)), None) for record in every_record()}

    assert [row for row in table.ROWS if row not in reached] == []


CREATES = [record for record in every_record() if not is_impossible(record)]


@pytest.mark.parametrize("tenant", list(TenantPodState))
def test_unknown_compute_state_means_wait(tenant: TenantPodState) -> None:
    record = Record(tenant=tenant, compute=ComputePodState.UNKNOWN)

    assert table.find_instructions(record) == (Instruction.WAIT,)


def test_pod_is_created_only_without_compute_pod_and_former_run() -> None:
    for record in CREATES:
        if Instruction.CREATE in table.find_instructions(record):
            assert record.tenant is TenantPodState.BOUND
            assert record.compute is ComputePodState.ABSENT
            assert not record.has_run
            assert record.dependencies is DependencyState.READY
            assert record.admission in (AdmissionState.FREE, AdmissionState.ADMITTED)


def test_tenant_pod_is_removed_only_after_its_compute_pod() -> None:
    for record in CREATES:
        if Instruction.DELETE_TENANT in table.find_instructions(record):
            assert record.compute not in (ComputePodState.LIVE, ComputePodState.DELETING, ComputePodState.UNKNOWN)


def test_undeleted_pod_is_removed_only_if_ended_and_blocking_its_replacement() -> None:
    for record in CREATES:
        if Instruction.DELETE_TENANT in table.find_instructions(record):
            deleted = record.tenant in (TenantPodState.DELETING, TenantPodState.TERMINAL_DELETING)
            assert deleted or (record.blocks_replacement and record.tenant is TenantPodState.TERMINAL)


def test_finalizer_is_removed_only_after_the_end_is_written() -> None:
    for record in CREATES:
        instructions = table.find_instructions(record)
        alive_above = record.tenant in (TenantPodState.BOUND, TenantPodState.DELETING)
        if Instruction.REMOVE_FINALIZER in instructions and alive_above:
            assert Instruction.WRITE_END in instructions
            assert instructions.index(Instruction.WRITE_END) < instructions.index(Instruction.REMOVE_FINALIZER)


def test_foreign_objects_are_never_touched() -> None:
    harmless = {
        Instruction.WAIT,
        Instruction.FORGET,
        Instruction.REPORT_NAME_TAKEN,
        Instruction.END_DELETED,
        Instruction.DELETE_TENANT,
    }
    for record in CREATES:
        if record.compute is ComputePodState.FOREIGN:
            assert set(table.find_instructions(record)) <= harmless


def test_orphans_are_recognized_only_with_a_complete_list() -> None:
    for record in CREATES:
        if record.tenant is TenantPodState.ABSENT and not record.list_complete:
            assert table.find_instructions(record) in ((Instruction.WAIT,), (Instruction.FORGET,))


def test_only_the_end_of_the_compute_pod_changes_a_final_status() -> None:
    writes = {
        Instruction.UPDATE_STATUS,
        Instruction.WRITE_END,
        Instruction.FAIL_REFUSED,
        Instruction.FAIL_LOST,
        Instruction.END_DELETED,
    }
    for record in CREATES:
        if record.tenant is TenantPodState.TERMINAL:
            allowed = {Instruction.WRITE_END} if record.compute is ComputePodState.TERMINAL else set()
            assert writes & set(table.find_instructions(record)) <= allowed
