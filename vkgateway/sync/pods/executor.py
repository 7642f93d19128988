"""The hands: which act, upward or downward, each of the table's instructions means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from vkgateway.sync.pods import absences
from vkgateway.sync.pods.forwarder import PodForwarder
from vkgateway.sync.pods.mirror import PodMirror
from vkgateway.sync.pods.pod_context import PodContext, tenant_pod_of
from vkgateway.sync.pods.record import Instruction
from vkgateway.sync.pods.replaced_pods import ReplacedPods

log = structlog.get_logger(__name__)


class EvictionNotifier(Protocol):
    """Tells running pods that they are to go, that they may stay after all, and that nobody will send them away."""

    async def give_notice(self, case: PodContext) -> None:
        """Write the deadline below and above, once."""

    async def withdraw_notice(self, case: PodContext) -> None:
        """Take a notice that does not hold any more off."""

    async def mark_promoted(self, case: PodContext) -> None:
        """Write down that a pod does not borrow any more, once."""


class Executor:
    """Carries instructions out for one tenant's pods; what cannot be done now raises one of our errors.

    `tell_held(case)` tells a pod that the arbiter holds why it waits.
    """

    def __init__(
        self,
        *,
        upward: PodMirror,
        downward: PodForwarder,
        replaced: ReplacedPods,
        notices: EvictionNotifier,
        tell_held: Callable[[PodContext], Awaitable[None]],
    ) -> None:
        self.mirror = upward
        self.forwarder = downward
        self._report_pending = tell_held
        self._actions: Mapping[Instruction, Callable[[PodContext], Awaitable[None]]] = {
            Instruction.FORGET: _do_nothing,
            Instruction.WAIT: _do_nothing,
            Instruction.DELETE_COMPUTE: downward.delete_pod,
            Instruction.DELETE_COMPUTE_LIKE_TENANT: downward.delete_like_tenant,
            Instruction.DELETE_AT_DEADLINE: downward.delete_at_deadline,
            Instruction.DELETE_STALE: downward.delete_stale,
            Instruction.RELEASE: downward.remove_finalizer,
            Instruction.CREATE: downward.create_pod,
            Instruction.SPEC_DOWN: downward.forward_changes,
            Instruction.READINESS_DOWN: downward.readiness.forward_conditions,
            Instruction.REFRESH: downward.refresh_tokens,
            Instruction.KEEP_LOGS: downward.keep_logs,
            Instruction.REPORT_TAKEN: downward.report_name_taken,
            Instruction.REPORT_MISSING: self._report_missing,
            Instruction.REPORT_HELD: self._report_unadmitted,
            Instruction.REPORT_UNDO: self._log_undo,
            Instruction.NOTICE: notices.give_notice,
            Instruction.WITHDRAW: notices.withdraw_notice,
            Instruction.PROMOTE: notices.mark_promoted,
            Instruction.TAKE_BACK: downward.revert_pod,
            Instruction.REJECT: self._reject_pod,
            Instruction.REFUSE: upward.fail_refused,
            Instruction.LOSE: upward.fail_lost,
            Instruction.STATUS_UP: upward.update_status,
            Instruction.FINISH: upward.write_end,
            Instruction.CLOSE: upward.end_deleted,
            Instruction.REMOVE_REPLACED: replaced.remove_replaced,
            Instruction.REMOVE_TENANT: upward.delete_pod,
        }

    async def execute_instruction(self, instruction: Instruction, case: PodContext) -> None:
        """Do one instruction for a case."""
        await self._actions[instruction](case)

    def forget_pod(self, uid: str) -> None:
        """Drop what is remembered of a tenant pod that is gone."""
        self.mirror.forget_pod(uid)
        self.forwarder.forget_pod(uid)

    async def _report_missing(self, case: PodContext) -> None:
        await self.mirror.report_absences(
            case, absences.mandatory_absences(case.missing_references, case.claims.unready)
        )

    async def _report_unadmitted(self, case: PodContext) -> None:
        assert case.admission is not None
        if case.plan is not None and case.plan.governed:
            await self._report_pending(case)
        else:
            await self.mirror.report_waiting(case, case.admission.code or "Held", case.admission.message, kind="Normal")

    async def _reject_pod(self, case: PodContext) -> None:
        assert case.admission is not None
        await self.mirror.fail_pod(case, case.admission.code, f"Pod was rejected: {case.admission.message}")

    async def _log_undo(self, case: PodContext) -> None:
        pod = tenant_pod_of(case).metadata
        log.warning("pod is final above but runs below; deleting it", namespace=pod.namespace, pod=pod.name)


async def _do_nothing(_case: PodContext) -> None:
    return
