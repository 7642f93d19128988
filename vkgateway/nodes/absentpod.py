"""Explanations for tenant pods without a compute pod: why the pod has not started, or how it ended. Pure.

The explanations come from the tenant pod's status. Like a kubelet, the endpoint answers with status 400 for a container
that has not started, and with status 200 instead of a deleted log.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from vkgateway.api.objects import TERMINAL_PHASES, Object
from vkgateway.kinds.pods.translation.conditions import (
    ADMITTED_CONDITION,
    DISRUPTION_CONDITION,
    FORWARDED_CONDITION,
    POOL_SCHEDULED_CONDITION,
)

_STATUS_LISTS: Final = ("containerStatuses", "initContainerStatuses", "ephemeralContainerStatuses")
_WAITING_CONDITIONS: Final = (
    (ADMITTED_CONDITION, "it waits for admission"),
    (FORWARDED_CONDITION, "it waits to be forwarded"),
    (POOL_SCHEDULED_CONDITION, "it waits for a compute node"),
)
_DISRUPTION_WORDS: Final = {"DeletionByComputeCluster": "deleted in the compute cluster", "Lost": "lost"}
"""Verbs by the reason of the condition DisruptionTarget. All other reasons mean an eviction."""


@dataclass(frozen=True, slots=True)
class AbsentPod:
    """A tenant pod without a compute pod. `name` is `NAMESPACE/NAME`."""

    name: str
    status: Object

    def describe_state(self) -> str:
        """Return a sentence that explains why the pod does not run."""
        if not self._has_run():
            return f"pod {self.name} {self._describe_waiting()}"
        return f"pod {self.name} {self._describe_end()}"

    def log_replacement(self, container: str, *, previous: bool) -> tuple[bool, str]:
        """Return whether the container has run, and the text that replaces its log."""
        status = self._container_status(container)
        ended = _terminated_state(status, "lastState" if previous else "state")
        if previous and ended is None:
            return False, f'previous terminated container "{container}" in pod "{self.name}" not found'
        if ended is None and not (status.get("state") or {}).get("running"):
            return False, f"container {container} of {self.describe_state()}"
        lines = [
            (
                f"[vkgateway] {self._capitalize_first(self.describe_state())}. The log of container "
                f"{container} was deleted with the pod."
            )
        ]
        if message := (ended or {}).get("message"):
            lines += ["[vkgateway] Its termination message is:", str(message).rstrip("\n")]
        return True, "\n".join(lines)

    def _has_run(self) -> bool:
        statuses = (status for key in _STATUS_LISTS for status in self.status.get(key) or ())
        states = (status.get(key) or {} for status in statuses for key in ("state", "lastState"))
        return any("running" in state or "terminated" in state for state in states)

    def _describe_waiting(self) -> str:
        reason, message = self.status.get("reason") or "", self.status.get("message") or ""
        if self.status.get("phase") in TERMINAL_PHASES:
            return f"was never started: {_join_reason(reason, message)}"
        for kind, words in _WAITING_CONDITIONS:
            if (entry := self._find_condition(kind)) and entry["status"] == "False":
                return (
                    f"has not been started yet: {words}: "
                    f"{_join_reason(entry.get('reason', ''), entry.get('message', ''))}"
                )
        return "has not been started yet"

    def _describe_end(self) -> str:
        at = f" at {moment}" if (moment := max(self._end_times(), default="")) else ""
        disruption = self._find_condition(DISRUPTION_CONDITION)
        if disruption is not None and disruption["status"] == "True":
            reason = disruption.get("reason", "")
            # The condition may still contain the message of the notice. The status has the final message.
            final = self.status if self.status.get("reason") == reason else disruption
            return (
                f"ran and was {_DISRUPTION_WORDS.get(reason, 'evicted')}{at} "
                f"({_join_reason(reason, final.get('message') or '')})"
            )
        if self.status.get("phase") not in TERMINAL_PHASES:
            return "ran, but does not exist in the compute cluster now"
        reason = _join_reason(self.status.get("reason") or "", self.status.get("message") or "")
        return f"ran and ended{at} ({reason or self.status['phase']})"

    def _end_times(self) -> Iterator[str]:
        for key in _STATUS_LISTS:
            for status in self.status.get(key) or ():
                if moment := (_terminated_state(status, "state") or {}).get("finishedAt"):
                    yield moment

    def _find_condition(self, kind: str) -> Object | None:
        return next((entry for entry in self.status.get("conditions") or () if entry["type"] == kind), None)

    def _container_status(self, name: str) -> Object:
        statuses = (status for key in _STATUS_LISTS for status in self.status.get(key) or ())
        return next((status for status in statuses if status["name"] == name), {})

    @staticmethod
    def _capitalize_first(sentence: str) -> str:
        return sentence[:1].upper() + sentence[1:]


def _terminated_state(status: Object, key: str) -> dict[str, Any] | None:
    terminated: dict[str, Any] | None = (status.get(key) or {}).get("terminated")
    return terminated


def _join_reason(reason: str, message: str) -> str:
    return ": ".join(filter(None, (reason, message)))
