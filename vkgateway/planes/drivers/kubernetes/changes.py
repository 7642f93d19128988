"""Changes of control planes in the management cluster, passed on to the gateway while the driver runs."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

from vkgateway.kube.backoff import Backoff
from vkgateway.planes.drivers.base import DriverListener
from vkgateway.planes.drivers.kubernetes.names import CONTROL_PLANE


class Changes:
    """Passes changes on to the listener; none while there is no listener."""

    def __init__(self) -> None:
        self.listener: DriverListener | None = None
        self._repairs = RepairThrottle()

    def addresses_changed(self, tenant: str) -> None:
        """See `DriverListener`."""
        if self.listener is not None:
            self.listener.addresses_changed(tenant)

    def object_changed(self, tenant: str, component: str, subject: str) -> None:
        """Report that another client changed or deleted an object `subject` of a control plane or of a name server."""
        if self.listener is None:
            return
        repair = self._repair_control_plane if component == CONTROL_PLANE else self.addresses_changed
        self._repairs.request(subject, lambda: repair(tenant))

    def stop(self) -> None:
        """Pass nothing on from now on."""
        self.listener = None
        self._repairs.close()

    def _repair_control_plane(self, tenant: str) -> None:
        if self.listener is not None:
            self.listener.control_plane_changed(tenant)


_QUIET_SECONDS = 120.0
"""Time without a change after which the next repair is not delayed."""


class RepairThrottle:
    """Calls `repair` for each subject that needs it: at once, and after repeated changes with increasing delays."""

    def __init__(self, backoff: Backoff | None = None) -> None:
        self._backoff = backoff or Backoff(base=2.0, cap=60.0)
        self._repairs: dict[str, tuple[int, float]] = {}
        """Number of repairs in a row, and the time of the last one in seconds of the event loop's clock."""
        self._waiting: dict[str, asyncio.TimerHandle] = {}

    def request(self, subject: str, repair: Callable[[], None]) -> None:
        """Call `repair` now or later; requests for a subject that waits for its repair are covered by that."""
        if subject in self._waiting:
            return
        loop = asyncio.get_running_loop()
        count, last = self._repairs.get(subject, (0, 0.0))
        if not count or loop.time() - last >= _QUIET_SECONDS:
            self._run(subject, repair, count=1)
            return
        due = max(loop.time(), last + self._backoff.delay_after(count))
        self._waiting[subject] = loop.call_at(due, lambda: self._run(subject, repair, count=count + 1))

    def close(self) -> None:
        """Drop the repairs that wait."""
        for timer in self._waiting.values():
            timer.cancel()
        self._waiting.clear()

    def _run(self, subject: str, repair: Callable[[], None], *, count: int) -> None:
        self._waiting.pop(subject, None)
        now = asyncio.get_running_loop().time()
        self._repairs = {key: one for key, one in self._repairs.items() if now - one[1] < _QUIET_SECONDS}
        self._repairs[subject] = count, now
        repair()
