"""The pod table walked through worlds that misbehave: deletions, forced ones, crashes between any two instructions.

The world is a model: one pod name, a tenant API server, a compute API server with a kubelet, and a gateway that reads
both, asks the table and carries out its instructions one at a time, dying wherever the walk says.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from vkgateway.kinds.pods import table
from vkgateway.kinds.pods.record import ComputePodState, Instruction, Record, TenantPodState


@dataclass
class Above:
    uid: int
    bound: bool = False
    deleting: bool = False
    terminal: bool = False
    ran: bool = False


@dataclass
class Below:
    uid: int
    running: bool = False
    deleting: bool = False
    terminal: bool = False
    finalizer: bool = True


@dataclass
class World:
    above: Above | None = None
    below: Below | None = None
    reachable: bool = True
    uids: int = 0
    created: list[int] = field(default_factory=list)
    forced: set[int] = field(default_factory=set)
    started: set[int] = field(default_factory=set)

    def record(self) -> Record:
        ran = self.above is not None and self.above.ran
        return Record(tenant=self._tenant(), compute=self._compute(), has_run=ran)

    def _tenant(self) -> TenantPodState:
        pod = self.above
        if pod is None:
            return TenantPodState.ABSENT
        if pod.terminal:
            return TenantPodState.TERMINAL_DELETING if pod.deleting else TenantPodState.TERMINAL
        if pod.deleting:
            return TenantPodState.DELETING
        return TenantPodState.BOUND if pod.bound else TenantPodState.UNBOUND

    def _compute(self) -> ComputePodState:
        if not self.reachable:
            return ComputePodState.UNKNOWN
        pod = self.below
        if pod is None:
            return ComputePodState.ABSENT
        if self.above is not None and self.above.uid != pod.uid:
            return ComputePodState.STALE
        if pod.terminal:
            return ComputePodState.TERMINAL_DELETING if pod.deleting else ComputePodState.TERMINAL
        return ComputePodState.DELETING if pod.deleting else ComputePodState.LIVE

    def collect(self) -> None:
        """What API servers do by themselves: an ended pod that is being deleted goes once no finalizer holds it."""
        pod = self.below
        if pod is not None and pod.deleting and pod.terminal and not pod.finalizer:
            self.below = None


class Gateway:
    """Carries instructions out in the model world."""

    def __init__(self, world: World) -> None:
        self.world = world

    def act(self, instruction: Instruction) -> None:
        acts = {
            Instruction.CREATE: self.create,
            Instruction.DELETE_COMPUTE: self.delete_below,
            Instruction.DELETE_LIKE_TENANT: self.delete_below,
            Instruction.DELETE_STALE: self.delete_stale,
            Instruction.REMOVE_FINALIZER: self.release,
            Instruction.UPDATE_STATUS: self.status_up,
            Instruction.WRITE_END: self.finish,
            Instruction.FAIL_LOST: self.lose,
            Instruction.END_DELETED: self.lose,
            Instruction.DELETE_TENANT: self.remove_above,
        }
        if instruction in acts:
            acts[instruction]()
        self.world.collect()

    def create(self) -> None:
        assert self.world.above is not None
        assert self.world.below is None, "two pods of one name below"
        self.world.created.append(self.world.above.uid)
        self.world.below = Below(self.world.above.uid)

    def delete_below(self) -> None:
        if self.world.below is not None:
            self.world.below.deleting = True
            if not self.world.below.running:
                self.world.below.terminal = True

    def delete_stale(self) -> None:
        self.delete_below()
        self.release()

    def release(self) -> None:
        if self.world.below is not None:
            self.world.below.finalizer = False

    def status_up(self) -> None:
        above, below = self.world.above, self.world.below
        assert above is not None
        assert below is not None
        assert not above.terminal, "a final status was overwritten"
        above.ran = above.ran or below.running

    def finish(self) -> None:
        if self.world.above is not None and not self.world.above.terminal:
            self.world.above.terminal = True

    def lose(self) -> None:
        assert self.world.above is not None
        self.world.above.terminal = True

    def remove_above(self) -> None:
        above, below = self.world.above, self.world.below
        assert above is not None
        if below is not None and below.uid == above.uid:
            assert below.terminal, "removed above while it runs below"
        self.world.above = None


class PodLife(RuleBasedStateMachine):
    """Random worlds; the invariants hold after every step, and every walk can be settled."""

    def __init__(self) -> None:
        super().__init__()
        self.world = World()
        self.gateway = Gateway(self.world)

    @precondition(lambda self: self.world.above is None)
    @rule()
    def tenant_creates(self) -> None:
        self.world.uids += 1
        self.world.above = Above(self.world.uids)

    @precondition(lambda self: self.world.above is not None and not self.world.above.deleting)
    @rule()
    def tenant_binds(self) -> None:
        assert self.world.above is not None
        self.world.above.bound = True

    @precondition(lambda self: self.world.above is not None)
    @rule()
    def tenant_deletes(self) -> None:
        above = self.world.above
        assert above is not None
        if above.bound:
            above.deleting = True
        else:
            self.world.above = None

    @precondition(lambda self: self.world.above is not None)
    @rule()
    def tenant_deletes_by_force(self) -> None:
        assert self.world.above is not None
        self.world.forced.add(self.world.above.uid)
        self.world.above = None

    @precondition(lambda self: self.world.below is not None and not self.world.below.terminal)
    @rule()
    def kubelet_starts(self) -> None:
        below = self.world.below
        assert below is not None
        if not below.running and not below.deleting:
            assert below.uid not in self.world.started, "one uid ran twice"
            self.world.started.add(below.uid)
            below.running = True

    @precondition(lambda self: self.world.below is not None)
    @rule()
    def kubelet_ends(self) -> None:
        below = self.world.below
        assert below is not None
        if below.running or below.deleting:
            below.terminal = True
        self.world.collect()

    @precondition(lambda self: self.world.below is not None)
    @rule()
    def somebody_deletes_below(self) -> None:
        self.gateway.delete_below()
        self.world.collect()

    @rule()
    def connection_changes(self) -> None:
        self.world.reachable = not self.world.reachable

    @rule(steps=st.integers(0, 4))
    def gateway_looks_and_may_die(self, steps: int) -> None:
        for instruction in table.find_instructions(self.world.record())[:steps]:
            self.gateway.act(instruction)

    @invariant()
    def no_uid_is_created_twice(self) -> None:
        assert len(self.world.created) == len(set(self.world.created))

    @invariant()
    def no_end_is_missed(self) -> None:
        """A pod that ran is never gone below while the tenant still believes that it runs."""
        above, below = self.world.above, self.world.below
        if above is not None and above.uid in self.world.started and not above.terminal:
            assert below is not None
            assert below.uid == above.uid

    def teardown(self) -> None:
        """Whatever happened: left alone, the world settles, and nothing is left over."""
        self.world.reachable = True
        for _ in range(12):
            for instruction in table.find_instructions(self.world.record()):
                self.gateway.act(instruction)
            below = self.world.below
            if below is not None and below.deleting:
                below.terminal = True
                self.world.collect()
        above, below = self.world.above, self.world.below
        if above is None or (above.deleting and above.bound):
            assert above is None
            assert below is None
        elif below is not None:
            assert below.uid == above.uid


PodLife.TestCase.settings = settings(max_examples=300, stateful_step_count=30, deadline=None)
TestPodLife = PodLife.TestCase
