"""The hands: which act, upward or downward, each of the table's instructions means."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Protocol

import structlog

from vkgateway.sync.pods import absences
from vkgateway.sync.pods.case import Case, above_of
from vkgateway.sync.pods.downward import Downward
from vkgateway.sync.pods.record import Instruction
from vkgateway.sync.pods.replaced import Replaced
from vkgateway.sync.pods.upward import Upward

log = structlog.get_logger(__name__)


class Notices(Protocol):
    """Tells running pods that they are to go, that they may stay after all, and that nobody will send them away."""

    async def give(self, case: Case) -> None:
        """Write the deadline below and above, once."""

    async def withdraw(self, case: Case) -> None:
        """Take a notice that does not hold any more off."""

    async def promote(self, case: Case) -> None:
        """Write down that a pod does not borrow any more, once."""


class Hands:
    """Carries instructions out for one tenant's pods; what cannot be done now raises one of our errors.

    `tell_held(case)` tells a pod that the arbiter holds why it waits.
    """

    def __init__(
        self,
        *,
        upward: Upward,
        downward: Downward,
        replaced: Replaced,
        notices: Notices,
        tell_held: Callable[[Case], Awaitable[None]],
    ) -> None:
        self.upward = upward
        self.downward = downward
        self._tell_held = tell_held
        self._acts: Mapping[Instruction, Callable[[Case], Awaitable[None]]] = {
            Instruction.FORGET: _nothing,
            Instruction.WAIT: _nothing,
            Instruction.DELETE_COMPUTE: downward.delete,
            Instruction.DELETE_COMPUTE_LIKE_TENANT: downward.delete_like_tenant,
            Instruction.DELETE_AT_DEADLINE: downward.delete_at_deadline,
            Instruction.DELETE_STALE: downward.delete_stale,
            Instruction.RELEASE: downward.release,
            Instruction.CREATE: downward.create,
            Instruction.SPEC_DOWN: downward.change,
            Instruction.READINESS_DOWN: downward.readiness.write,
            Instruction.REFRESH: downward.refresh,
            Instruction.KEEP_LOGS: downward.keep_logs,
            Instruction.REPORT_TAKEN: downward.report_taken,
            Instruction.REPORT_MISSING: self._report_missing,
            Instruction.REPORT_HELD: self._report_held,
            Instruction.REPORT_UNDO: self._report_undo,
            Instruction.NOTICE: notices.give,
            Instruction.WITHDRAW: notices.withdraw,
            Instruction.PROMOTE: notices.promote,
            Instruction.TAKE_BACK: downward.take_back,
            Instruction.REJECT: self._reject,
            Instruction.REFUSE: upward.refuse,
            Instruction.LOSE: upward.lose,
            Instruction.STATUS_UP: upward.mirror,
            Instruction.FINISH: upward.finish,
            Instruction.CLOSE: upward.close,
            Instruction.REMOVE_REPLACED: replaced.remove,
            Instruction.REMOVE_TENANT: upward.remove,
        }

    async def carry_out(self, instruction: Instruction, case: Case) -> None:
        """Do one instruction for a case."""
        await self._acts[instruction](case)

    def forget(self, uid: str) -> None:
        """Drop what is remembered of a tenant pod that is gone."""
        self.upward.forget(uid)
        self.downward.forget(uid)

    async def _report_missing(self, case: Case) -> None:
        await self.upward.report_absences(case, absences.mandatory(case.missing, case.claims.lacking))

    async def _report_held(self, case: Case) -> None:
        assert case.admission is not None
        if case.plan is not None and case.plan.governed:
            await self._tell_held(case)
        else:
            await self.upward.report(case, case.admission.code or "Held", case.admission.message, kind="Normal")

    async def _reject(self, case: Case) -> None:
        assert case.admission is not None
        await self.upward.fail(case, case.admission.code, f"Pod was rejected: {case.admission.message}")

    async def _report_undo(self, case: Case) -> None:
        pod = above_of(case).metadata
        log.warning("pod is final above but runs below; deleting it", namespace=pod.namespace, pod=pod.name)


async def _nothing(_case: Case) -> None:
    return
