"""Execution of the pod table's instructions in the tenant and compute cluster."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from vkgateway.sync.pods.deleter import PodDeleter
from vkgateway.sync.pods.forwarder import PodForwarder
from vkgateway.sync.pods.mirror import PodMirror, ReplacedPods
from vkgateway.sync.pods.pod_context import PodContext, plan_of, tenant_pod_of
from vkgateway.sync.pods.record import Instruction

log = structlog.get_logger(__name__)


class EvictionNotifier(Protocol):
    """Writer of eviction notices and of their withdrawal, and of promotions of borrowing pods."""

    async def give_notice(self, context: PodContext) -> None:
        """Write the deadline to the compute pod and the tenant pod, once."""

    async def withdraw_notice(self, context: PodContext) -> None:
        """Remove a notice that does not apply any longer."""

    async def mark_promoted(self, context: PodContext) -> None:
        """Record once that a pod does not borrow any longer."""


class PodNotifier(Protocol):
    """Reporter to pods that wait, and writer of eviction notices."""

    @property
    def notices(self) -> EvictionNotifier:
        """Eviction notices."""

    async def report_pending(self, context: PodContext) -> None:
        """Report to a pod that waits for the arbiter why it waits."""


class Executor:
    """Executor of instructions for one tenant's pods. Raises one of vkgateway's errors if an instruction must be
    retried.
    """

    def __init__(
        self,
        mirror: PodMirror,
        forwarder: PodForwarder,
        *,
        deleter: PodDeleter,
        replaced: ReplacedPods,
        notifier: PodNotifier,
    ) -> None:
        self.mirror = mirror
        self.forwarder = forwarder
        self._notifier = notifier
        self._actions: Mapping[Instruction, Callable[[PodContext], Awaitable[None]]] = {
            Instruction.FORGET: _do_nothing,
            Instruction.WAIT: _do_nothing,
            Instruction.DELETE_COMPUTE: deleter.delete_pod,
            Instruction.DELETE_LIKE_TENANT: deleter.delete_like_tenant,
            Instruction.DELETE_AT_DEADLINE: deleter.delete_at_deadline,
            Instruction.DELETE_STALE: deleter.delete_stale,
            Instruction.REMOVE_FINALIZER: deleter.remove_finalizer,
            Instruction.CREATE: forwarder.create_pod,
            Instruction.FORWARD_CHANGES: forwarder.forward_changes,
            Instruction.FORWARD_READINESS: forwarder.readiness.forward_conditions,
            Instruction.REFRESH_TOKENS: forwarder.refresh_tokens,
            Instruction.KEEP_LOGS: deleter.keep_logs,
            Instruction.REPORT_NAME_TAKEN: forwarder.report_name_taken,
            Instruction.REPORT_MISSING: mirror.reporter.report_missing,
            Instruction.REPORT_PENDING: self._report_unadmitted,
            Instruction.REPORT_UNDO: self._log_undo,
            Instruction.GIVE_NOTICE: notifier.notices.give_notice,
            Instruction.WITHDRAW_NOTICE: notifier.notices.withdraw_notice,
            Instruction.MARK_PROMOTED: notifier.notices.mark_promoted,
            Instruction.REVERT: deleter.revert_pod,
            Instruction.FAIL_REJECTED: self._reject_pod,
            Instruction.FAIL_REFUSED: self._fail_refused,
            Instruction.FAIL_LOST: mirror.failures.fail_lost,
            Instruction.UPDATE_STATUS: mirror.update_status,
            Instruction.WRITE_END: mirror.write_end,
            Instruction.END_DELETED: mirror.end_deleted,
            Instruction.REMOVE_REPLACED: replaced.remove_replaced,
            Instruction.DELETE_TENANT: mirror.delete_pod,
        }

    async def execute_instruction(self, instruction: Instruction, context: PodContext) -> None:
        """Execute one instruction for a pod."""
        await self._actions[instruction](context)

    def forget_pod(self, uid: str) -> None:
        """Drop the state of a deleted tenant pod."""
        self.mirror.forget_pod(uid)
        self.forwarder.forget_pod(uid)

    async def _report_unadmitted(self, context: PodContext) -> None:
        assert context.admission is not None
        if context.plan is not None and context.plan.governed:
            await self._notifier.report_pending(context)
        else:
            await self.mirror.reporter.report_waiting(
                context, context.admission.code or "Held", context.admission.message, kind="Normal"
            )

    async def _fail_refused(self, context: PodContext) -> None:
        await self.mirror.failures.refuse_pod(tenant_pod_of(context), plan_of(context).refusals)

    async def _reject_pod(self, context: PodContext) -> None:
        assert context.admission is not None
        await self.mirror.failures.fail_pod(
            context, context.admission.code, f"Pod was rejected: {context.admission.message}"
        )

    async def _log_undo(self, context: PodContext) -> None:
        pod = tenant_pod_of(context).metadata
        log.warning(
            "tenant pod is final but its compute pod runs; deleting the compute pod",
            namespace=pod.namespace,
            pod=pod.name,
        )


async def _do_nothing(_case: PodContext) -> None:
    return
