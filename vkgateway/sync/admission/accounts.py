"""Keeps account of one tenant's governed pods: how long their starts take, and what they used when they have ended."""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from vkgateway.sync.admission.history import RunTimes
from vkgateway.sync.admission.member import Member, gang_id
from vkgateway.sync.admission.seen import Seen
from vkgateway.sync.admission.startmeter import StartMeter
from vkgateway.sync.admission.verdicts import PREEMPTED, Ran, Said, Verdict
from vkgateway.sync.pods.views import ComputePodView


class Audience(Protocol):
    """Who hears of it."""

    @property
    def meter(self) -> StartMeter:
        """Measures the way to guaranteed starts."""

    def ended(self, tenant: str, ran: Ran) -> None:
        """A pod that ran has ended."""


class Accounts:
    """One tenant's."""

    def __init__(self, tenant: str, audience: Audience, *, clock: Callable[[], float]) -> None:
        self._tenant = tenant
        self._audience = audience
        self._clock = clock
        self._history = RunTimes()
        self._since: dict[str, float] = {}
        """Since when (seconds since the epoch) each pod, by uid, holds what it was given below."""

    def expect(self, member: Member) -> float | None:
        """Seconds that a pod will run, by those like it; None: too few are known."""
        return self._history.expect(*member.key)

    def arrived(self, member: Member) -> None:
        """A pod that is to be placed was read for the first time."""
        self._audience.meter.arrived(self._gang(member), member.uid, created=member.created, now=self._clock())

    def note(self, member: Member, seen: Seen, *, below: ComputePodView | None, verdict: Verdict | None) -> None:
        """A pod stands like this now."""
        uid = member.uid
        if seen.state is None:
            self._audience.meter.gone(self._gang(member), uid)
            start = self._since.pop(uid, None)
            if start is not None and seen.done:
                self._history.ran(*member.key, self._clock() - start)
            if start is not None and verdict is not None:
                self._audience.ended(self._tenant, self._ran(member, verdict, start=start, done=seen.done))
        elif below is not None:
            self._since.setdefault(uid, seen.since)
            if below.spec.node_name:
                self._audience.meter.bound(uid, now=self._clock())

    def forget(self, member: Member) -> None:
        """A pod is gone, or of no gang any more."""
        self._audience.meter.gone(self._gang(member), member.uid)
        self._since.pop(member.uid, None)

    def _ran(self, member: Member, verdict: Verdict, *, start: float, done: bool) -> Ran:
        return Ran(
            namespace=member.key[0],
            name=member.key[1],
            gang=self._gang(member),
            band=member.band,
            verdict=verdict,
            shape=member.shape,
            start=start,
            end=self._clock(),
            saved=member.marks.checkpoint if member.marks is not None else 0.0,
            why=PREEMPTED if verdict.said is Said.EVICTING else "Succeeded" if done else "Ended",
        )

    def _gang(self, member: Member) -> str:
        return gang_id(self._tenant, member.group)
