"""Phases of the start of a pod: how long each took, from the times of its milestones (pure)."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal, get_args

from vkgateway.api.times import parse_seconds

Phase = Literal["admit", "bind", "sandbox", "pull", "start", "ready"]
"""A phase of a start. Admit: until the arbiter admits the pod. Bind: until the compute pod has a node. Sandbox: volumes
and network. Pull: images. Start: init containers, and the creation of containers. Ready: readiness probes.
"""
PHASES: Final[tuple[Phase, ...]] = get_args(Phase)


@dataclass(slots=True)
class StartTimes:
    """Milestones of one start, in seconds since the epoch; None: not reached, or not known."""

    created: float
    admitted: float | None = None
    bound: float | None = None
    """When a compute node was selected."""
    sandbox: float | None = None
    """When volumes and network of the pod were set up."""
    started: float | None = None
    """When the last container started."""
    ready: float | None = None
    pull_seconds: float = 0.0
    """Duration of all image pulls, including the time that they waited for pulls of other pods."""

    def restart(self) -> None:
        """Forget what happened on a node, because the pod gets another one."""
        self.bound = self.sandbox = self.started = self.ready = None
        self.pull_seconds = 0.0


def precise_time(stamp: str | None, seen: float) -> float:
    """Return when something happened, from its time in whole seconds and when the gateway saw it.

    It happened within that second and not after it was seen. Clocks of two machines may differ, so the stated second
    limits the time. Without a time, it is when the gateway saw it.
    """
    second = parse_seconds(stamp)
    return min(max(seen, second), second + 1) if second else seen


def phase_seconds(times: StartTimes) -> dict[Phase, float]:
    """Return the seconds of each phase that has ended.

    A phase whose end is not known, although a later one is, took no time. Kubelets pull the images of a pod one after
    the other between the sandbox and the start of the last container.
    """
    reached = _reached(times)
    lengths = [end - start for start, end in itertools.pairwise(reached)]
    found: dict[Phase, float] = dict(zip(PHASES, lengths[:3], strict=False))
    if len(lengths) > len(found):
        found["pull"] = min(times.pull_seconds, lengths[3])
        found["start"] = lengths[3] - found["pull"]
    if len(lengths) == len(PHASES) - 1:
        found["ready"] = lengths[4]
    return found


def current_phase(times: StartTimes, *, pulls: bool = False) -> Phase | None:
    """Return the phase in which a pod is; None: its containers are ready. `pulls`: an image is being pulled."""
    passed = len(_reached(times)) - 1
    if passed < PHASES.index("pull"):
        return PHASES[passed]
    if passed == PHASES.index("pull"):
        return "pull" if pulls else "start"
    return "ready" if times.ready is None else None


def since_phase(times: StartTimes) -> float:
    """Return when the current phase began. Pull and start alternate, so both begin with the sandbox."""
    return _reached(times)[-1]


def describe_phases(phases: Mapping[Phase, float]) -> str:
    """Return the phases in words, such as `admit 0.2 s, bind 0.1 s, sandbox 1.0 s`."""
    return ", ".join(f"{phase} {phases[phase]:.1f} s" for phase in PHASES if phase in phases)


def _reached(times: StartTimes) -> list[float]:
    """Return the times of all milestones up to the last one that is known, in ascending order."""
    milestones = (times.created, times.admitted, times.bound, times.sandbox, times.started, times.ready)
    last = max(place for place, time in enumerate(milestones) if time is not None)
    reached = [times.created]
    for time in milestones[1 : last + 1]:
        reached.append(reached[-1] if time is None else max(time, reached[-1]))
    return reached
