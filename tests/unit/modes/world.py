"""A pool with another scheduler, simulated: gangs, their pods, and a scheduler that counts GPUs on nodes."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from random import Random
from typing import Any

from tests.unit.arbiter.simulated_cluster import GPU, KEY, gpu_shape, make_gang, make_nodes, make_quota
from vkgateway.api.objects import Object
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.api.types import PoolScheduling
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState, Breach, Wait
from vkgateway.scheduler.backends.attempts import plan_attempts
from vkgateway.scheduler.backends.breaches import update_breaches
from vkgateway.scheduler.backends.kueue.mode import KueueMode
from vkgateway.scheduler.backends.mode import ModeInput, ModeResult, SchedulingMode
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.snapshot import Gang, PodState, Pool, Quota, Snapshot

MODE = KueueMode()


class SingleEvictions(KueueMode):
    """A scheduler that evicts single pods, and to which a gang returns after a while."""

    retry_seconds = 10.0


SPEC = PoolSpec(name=KEY[1], scheduling=PoolScheduling(mode="kueue"))
WAIT = Wait(PendingReason.ROOM, "no room")


@dataclass
class World:
    """One pool. Time is in seconds; a scheduler's object is an `Attempt`."""

    nodes: int = 4
    quotas: tuple[Quota, ...] = (make_quota("a", 16), make_quota("b", 0))
    now: float = 1000.0
    gangs: dict[str, Gang] = field(default_factory=dict)
    attempts: dict[str, Attempt] = field(default_factory=dict)
    asked: dict[str, Object] = field(default_factory=dict)
    known: set[str] = field(default_factory=lambda: {"a", "b", "c"})
    numbers: int = 0
    reserved: dict[str, Mapping[str, Mapping[str, int]]] = field(default_factory=dict)
    """Slots that attempts reserve, also after their eviction, by the UID of the attempt."""
    sizes: dict[str, int] = field(default_factory=dict)
    """GPUs of each pod by gang."""
    shrunk: set[str] = field(default_factory=set)
    """Gangs of which pods ended."""
    down: set[str] = field(default_factory=set)
    """Nodes that are not usable."""
    mode: SchedulingMode = field(default_factory=KueueMode)
    breaches: dict[str, Breach] = field(default_factory=dict)
    preempted: dict[str, float] = field(default_factory=dict)
    """Gangs of which evictions of single pods became known since the last cycle, with the times of the evictions."""
    signs: dict[str, float] = field(default_factory=dict)
    """When the last pod of a gang ended by such an eviction. The ended tenant pods show it."""

    def add(self, name: str, tenant: str, gpus: list[int], **fields: Any) -> Gang:
        """Add a waiting gang, whose pods request GPUs."""
        fields = {"notice": 10.0, "grace": 5.0, "minimum": len(gpus), "pools": (KEY,)} | fields
        gang = make_gang(name, tenant, gpus, **fields)
        self.gangs[name] = gang = replace(gang, id=f"{tenant}/default/gang/{name}")
        return gang

    def gang(self, name: str) -> Gang:
        return self.gangs[name]

    def states(self, name: str) -> list[str]:
        return [pod.state.value for pod in self.gangs[name].pods]

    def attempt_of(self, name: str, *, surplus: str = "") -> Attempt | None:
        """Return the attempt for a gang, or for one surplus pod of it."""
        gang = self.gangs[name]
        return self.attempts.get(attempt_name(gang.tenant, gang.id, surplus))

    def given(self) -> ModeInput:
        """Return the input of a cycle."""
        nodes = (replace(node, usable=node.name not in self.down) for node in make_nodes(self.nodes))
        pool = Pool(key=KEY, nodes=tuple(nodes), governed=(GPU,))
        gangs = tuple(gang for gang in self.gangs.values() if gang.pods)
        self.breaches = update_breaches(
            self.breaches,
            gangs,
            self.attempts,
            preempted=self.preempted,
            retry_seconds=self.mode.retry_seconds,
            now=self.now,
        )
        self.preempted = {}
        return ModeInput(
            snapshot=Snapshot(pools=(pool,), quotas=self.quotas, gangs=gangs),
            specs={KEY: SPEC},
            attempts=dict(self.attempts),
            known_tenants=frozenset(self.known),
            breaches=self.breaches,
            now=self.now,
        )

    def plan(self) -> ModeResult:
        return plan_attempts(self.mode, self.given())

    def cycle(self) -> ModeResult:
        """Plan, and carry out everything."""
        result = self.plan()
        self.carry_out(result.decisions)
        for write in writes(result):
            self.write(write)
        return result

    def settle(self, *, seconds: float = 0.0) -> None:
        """Run cycles until nothing changes, then let time pass."""
        for _ in range(20):
            before = dict(self.gangs), dict(self.attempts)
            self.cycle()
            self.schedule()
            if before == (self.gangs, self.attempts):
                break
        self.now += seconds
        self.end_pods()

    def carry_out(self, decisions: Decisions) -> None:
        """Change the states of pods as the verdicts do."""
        changed: dict[str, dict[str, Any]] = {}
        for admit in decisions.admits:
            for uid, node in admit.nodes.items():
                start = {"state": PodState.PLACED, "pool": admit.pool, "node": node, "since": self.now}
                changed[uid] = start | {"borrowed": admit.borrowed}
        for evict in decisions.evicts:
            for uid in evict.pods:
                changed[uid] = {"state": PodState.NOTIFIED, "deadline": evict.deadline, "borrowed": True}
                changed[uid]["evicted_for"] = evict.makes_room_for
        self._replace_pods(lambda pod: replace(pod, **changed[pod.uid]) if pod.uid in changed else pod)

    def write(self, write: tuple[str, Any]) -> None:
        """Carry out one write, as an API server does: a second object of a name, or another state, is refused."""
        kind, what = write
        if kind == "return":
            self._take_back(what.attempt, what.slots)
            return
        if kind == "release":
            if self.attempts.get(what.name) == what:
                del self.attempts[what.name]
            return
        name = what["metadata"]["name"]
        if name in self.attempts:
            return
        self.numbers += 1
        self.asked[name] = what
        self.attempts[name] = Attempt(
            name=name,
            uid=f"w{self.numbers}",
            resource_version="1",
            tenant=what["metadata"]["annotations"]["vkgateway.io/gang-tenant"],
            pool=KEY,
            digest=what["metadata"]["annotations"]["vkgateway.io/digest"],
            state=AttemptState.PENDING,
            created=self.now + self.numbers / 1000,
            priority=what["spec"]["priority"],
            wait=WAIT,
        )

    def _take_back(self, attempt: Attempt, slots: Mapping[str, int]) -> None:
        """Take slots back, as Kueue does: their number never decreases, and its webhook refuses other writes."""
        known = self.attempts.get(attempt.name)
        if known is None or known.uid != attempt.uid:
            return
        assert slots.keys() >= known.returned.keys()
        for name, number in slots.items():
            assert known.returned.get(name, 0) <= number <= sum(known.slots[name].values())
        self.change(attempt.name, returned=dict(slots))

    def complete(self, uid: str) -> None:
        """End a pod for good, as a Job counts it: its gang needs one less."""
        for name, gang in self.gangs.items():
            left = tuple(pod for pod in gang.pods if pod.uid != uid)
            if len(left) < len(gang.pods):
                self.gangs[name] = replace(gang, pods=left, minimum=max(0, gang.minimum - 1))

    def schedule(self) -> None:
        """Admit pending attempts that fit, by priority and age."""
        pending = [one for one in self.attempts.values() if one.state is AttemptState.PENDING]
        for attempt in sorted(pending, key=lambda one: (-one.priority, one.created)):
            slots = self._find_slots(self.asked[attempt.name])
            if slots is not None:
                self.reserved[attempt.uid] = slots
                self.change(attempt.name, state=AttemptState.ADMITTED, slots=slots, wait=None)

    def change(self, attempt: str, **fields: Any) -> None:
        """Change the state of an attempt."""
        old = self.attempts[attempt]
        version = str(int(old.resource_version) + 1)
        self.attempts[attempt] = replace(old, resource_version=version, **fields)

    def evict(self, name: str, *, preemptor: str = "") -> None:
        """Evict the attempt of a gang."""
        attempt = self.attempt_of(name)
        assert attempt is not None
        self.change(attempt.name, state=AttemptState.EVICTED, slots={}, preemptor=preemptor)

    def move_slots(self, name: str) -> bool:
        """Move the slots of a gang away from nodes that are not usable, as Kueue does, or evict it."""
        attempt = self.attempt_of(name)
        assert attempt is not None
        document, slots = self.asked[attempt.name], {key: dict(nodes) for key, nodes in attempt.slots.items()}
        lost = [(key, node) for key, nodes in slots.items() for node in nodes if node in self.down]
        self.reserved[attempt.uid] = slots
        for key, node in lost:
            for _ in range(slots[key].pop(node)):
                size, free = gpus_of(document, key), self._free_gpus()
                found = next((each for each, left in free.items() if left >= size), None)
                if found is None:
                    self.evict(name)
                    return False
                slots[key][found] = slots[key].get(found, 0) + 1
        self.change(attempt.name, slots=slots)
        return True

    def _free_gpus(self) -> dict[str, int]:
        """Return the GPUs of usable nodes that no attempt reserves."""
        free = {f"n{index}": 8 for index in range(self.nodes)}
        for attempt in self.attempts.values():
            for pod_set, nodes in self.reserved.get(attempt.uid, {}).items():
                for node, count in nodes.items():
                    free[node] -= count * gpus_of(self.asked[attempt.name], pod_set)
        return {node: left for node, left in free.items() if node not in self.down}

    def evict_pod(self, uid: str) -> None:
        """Let the scheduler delete a running pod, as one that evicts single pods does."""
        for name, gang in self.gangs.items():
            for pod in gang.pods:
                if pod.uid == uid and pod.state is PodState.PLACED:
                    ending = replace(pod, state=PodState.ENDING, deadline=self.now + 3.0)
                    pods = tuple(ending if each.uid == uid else each for each in gang.pods)
                    self.gangs[name] = replace(gang, pods=pods)
                    self.preempted[gang.id] = math.inf
                    self.signs[gang.id] = self.now
                    return

    def restart(self) -> None:
        """Start the gateway again: it knows pods and attempts, and the evictions that ended pods show."""
        self.breaches = {}
        self.preempted = dict(self.signs)

    def _find_slots(self, document: Object) -> Mapping[str, Mapping[str, int]] | None:
        free = self._free_gpus()
        slots: dict[str, dict[str, int]] = {}
        for pod_set in document["spec"]["podSets"]:
            size = gpus_of(document, pod_set["name"])
            nodes = slots.setdefault(pod_set["name"], {})
            for _ in range(pod_set["count"]):
                found = next((name for name, left in free.items() if left >= size), None)
                if found is None:
                    return None
                free[found] -= size
                nodes[found] = nodes.get(found, 0) + 1
        return slots

    def end_pods(self, *, at: float | None = None) -> None:
        """Delete the pods whose deadline has passed; their controller does not replace them."""
        at = self.now if at is None else at
        self.remove(lambda pod: pod.state is PodState.NOTIFIED and pod.deadline <= at)

    def end_evicted_pods(self) -> None:
        """Delete the pods that the scheduler deleted and whose grace has passed."""
        self.remove(lambda pod: pod.state is PodState.ENDING and pod.deadline <= self.now)

    def remove(self, matches: Any) -> None:
        """Remove pods."""
        for name, gang in list(self.gangs.items()):
            self.gangs[name] = replace(gang, pods=tuple(pod for pod in gang.pods if not matches(pod)))

    def recreate(self, name: str) -> None:
        """Create new pods in place of missing ones, as a Job does."""
        gang = self.gangs[name]
        self.numbers += 1
        template = make_gang(f"{name}.{self.numbers}", gang.tenant, [1] * max(0, gang.minimum - len(gang.pods)))
        size = gang.pods[0].shape if gang.pods else gpu_shape(self.sizes[name])
        self.gangs[name] = replace(gang, pods=(*gang.pods, *(replace(pod, shape=size) for pod in template.pods)))

    def _replace_pods(self, change: Any) -> None:
        for name, gang in self.gangs.items():
            self.gangs[name] = replace(gang, pods=tuple(change(pod) for pod in gang.pods))

    # -- invariants --

    def check(self) -> None:
        """Check what must hold at every moment."""
        self.check_nodes()
        for gang in self.gangs.values():
            placed = [pod for pod in gang.pods if pod.state is PodState.PLACED]
            notified = [pod for pod in gang.pods if pod.state is PodState.NOTIFIED]
            assert not placed or notified or len(placed) >= gang.minimum or gang.id in self.shrunk, f"part of {gang.id}"
            for pod in placed:
                assert pod.node, f"{pod.uid} has no node"
            self._check_returned_slots(gang)

    def _check_returned_slots(self, gang: Gang) -> None:
        """Check that no pod runs in a slot that the scheduler got back."""
        attempt = self.attempts.get(attempt_name(gang.tenant, gang.id))
        if attempt is None or attempt.state is not AttemptState.ADMITTED:
            return
        alone = {pod.uid for pod in gang.pods if attempt_name(gang.tenant, gang.id, pod.uid) in self.attempts}
        running = sum(pod.state is not PodState.WAITING and pod.uid not in alone for pod in gang.pods)
        slots = sum(sum(nodes.values()) for nodes in attempt.slots.values())
        assert running <= slots - sum(attempt.returned.values()), f"{gang.id} uses returned slots"

    def check_nodes(self) -> None:
        """Check that no node has more pods than GPUs."""
        used: dict[str, int] = {}
        for gang in self.gangs.values():
            for pod in gang.pods:
                if pod.node:
                    used[pod.node] = used.get(pod.node, 0) + pod.shape.amount_of(GPU) // 1000
        assert all(amount <= 8 for amount in used.values()), f"overused: {used}"


def gpus_of(document: Object, pod_set: str) -> int:
    found = next(one for one in document["spec"]["podSets"] if one["name"] == pod_set)
    requests = found["template"]["spec"]["containers"][0]["resources"]["requests"]
    return int(requests[GPU])


def writes(result: ModeResult) -> Iterator[tuple[str, Any]]:
    """Return the writes to the scheduler, one by one."""
    yield from (("release", one) for one in result.releases)
    yield from (("create", one) for one in result.creates)
    yield from (("return", one) for one in result.returns)


def random_world(random: Random) -> World:
    world = World(nodes=random.randint(1, 4))
    for index in range(random.randint(1, 6)):
        size, count = random.choice((1, 2, 4, 8)), random.choice((1, 1, 2, 3))
        name = f"g{index}"
        world.sizes[name] = size
        world.add(name, random.choice(("a", "b")), [size] * count, priority=random.choice((0, 0, 5)))
    return world
