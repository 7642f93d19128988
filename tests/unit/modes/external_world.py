"""A pool of an external scheduler, simulated: gangs and their pods, without any object at the scheduler."""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

from tests.unit.arbiter.simulated_cluster import KEY
from tests.unit.modes.world import World
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.external.mode import ExternalMode
from vkgateway.scheduler.backends.mode import ModeInput, SchedulingMode
from vkgateway.scheduler.core.snapshot import PodState

SPEC = PoolSpec(name=KEY[1], scheduling=PoolScheduling(mode="external", scheduler_name="gpu-scheduler"))


@dataclass
class ExternalWorld(World):
    """One pool."""

    mode: SchedulingMode = field(default_factory=ExternalMode)
    spec: PoolSpec = SPEC

    def given(self) -> ModeInput:
        """Return the input of a cycle."""
        return replace(super().given(), specs={KEY: self.spec})

    def preempt(self, name: str, *, index: int = 0) -> None:
        """Let the scheduler delete a pod of a running gang."""
        gang = self.gang(name)
        pods = list(gang.pods)
        pods[index] = replace(pods[index], state=PodState.ENDING, deadline=self.now + 3)
        self.gangs[name] = replace(gang, pods=tuple(pods))
        self.preempted[gang.id] = math.inf
        self.sizes[name] = gang.pods[0].shape.amount_of("nvidia.com/gpu") // 1000

    def end_everything(self) -> None:
        """Remove all pods that terminate."""
        self.remove(lambda pod: pod.state in (PodState.ENDING, PodState.NOTIFIED))

    def recreate_missing(self, name: str) -> None:
        """Create new pods in place of those that terminate, as a Job does."""
        gang = self.gang(name)
        ending = [pod for pod in gang.pods if pod.state in (PodState.ENDING, PodState.NOTIFIED)]
        self.numbers += 1
        new = (
            replace(pod, uid=f"{pod.uid}.{self.numbers}", state=PodState.WAITING, pool=None, node="", deadline=0.0)
            for pod in ending
        )
        self.gangs[name] = replace(gang, pods=(*gang.pods, *new))
