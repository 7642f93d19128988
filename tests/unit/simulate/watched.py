"""Arbiter in a simulation, with a check of each cycle."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from vkgateway.scheduler.core.capacity.node_resources import NodeResources
from vkgateway.scheduler.core.capacity.placement import place_pods
from vkgateway.scheduler.core.decisions import Decisions, PendingReason
from vkgateway.scheduler.core.queueing.pending_gangs import PendingGang, read_pending_gang
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Snapshot
from vkgateway_platform.simulate.policies.arbiter import ArbiterScheduler


class WatchedArbiter(ArbiterScheduler):
    """Arbiter that fails if a pending gang with reason WaitingForRoom fits free capacity that is not reserved."""

    def decide(self, snapshot: Snapshot, now: float) -> Decisions:
        """Decide, and check the decisions."""
        decisions = super().decide(snapshot, now)
        gangs = {gang.id: gang for gang in snapshot.gangs}
        waiting = [gangs[hold.gang] for hold in decisions.holds if hold.code is PendingReason.ROOM]
        for pool in snapshot.pools if waiting else ():
            self._none_fits(pool, _room(pool, snapshot, decisions), waiting, now)
        return decisions

    @staticmethod
    def _none_fits(pool: Pool, room: NodeResources, waiting: list[Gang], now: float) -> None:
        tried: set[object] = set()
        for gang in waiting:
            pending = read_pending_gang(gang)
            if not isinstance(pending, PendingGang) or pending.placed_pods or pool.key not in pending.allowed_pools:
                continue
            what = tuple(pod.shape for pod in pending.min_members), gang.required_level
            if what in tried:
                continue
            tried.add(what)
            mark = room.journal.mark()
            found = place_pods(room, pending.min_members, required_level=gang.required_level)
            room.journal.undo(mark)
            assert found is None, f"{gang.id} waits at {now:.0f} s and fits on {sorted(set(found.values()))}"


def _room(pool: Pool, snapshot: Snapshot, decisions: Decisions) -> NodeResources:
    """Return the free capacity after the decisions, without capacity that plans will use."""
    room = NodeResources(pool)
    for pod in _placed(snapshot, decisions):
        if pod.node in room.nodes:
            room.add_pods(pod.node, pod.shape)
    return room


def _placed(snapshot: Snapshot, decisions: Decisions) -> Iterator[Pod]:
    nodes = {uid: node for admit in decisions.admits for uid, node in admit.nodes.items()}
    for plan in decisions.plans.values():
        nodes |= plan.nodes
    for gang in snapshot.gangs:
        for pod in gang.pods:
            node = pod.node or nodes.get(pod.uid, "")
            if node:
                yield replace(pod, node=node)
