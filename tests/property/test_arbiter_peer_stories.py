"""Random clusters over time: each start keeps its hard constraints about other pods, and evictions lead to starts."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest

from tests.unit.arbiter.kube_filters import Peer, permits
from tests.unit.arbiter.simulated_cluster import LOW, Cluster, gpu_shape, make_gang, make_node, make_quota
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.peer_rules import VIRTUAL_NODE, PeerRules, PeerTerm, SpreadRule
from vkgateway.scheduler.core.snapshot import Gang, PodState

HOST = "kubernetes.io/hostname"
WEB = "a/web"
MINE = frozenset((WEB,))
RULES = (
    PeerRules(selected_by=MINE, spread=(SpreadRule(peers=WEB, topology_key=HOST, max_skew=1),)),
    PeerRules(selected_by=MINE, spread=(SpreadRule(peers=WEB, topology_key="rack", max_skew=1),)),
    PeerRules(selected_by=MINE, anti_affinity=(PeerTerm(WEB, HOST),)),
    PeerRules(selected_by=MINE, anti_affinity=(PeerTerm(WEB, VIRTUAL_NODE),)),
    PeerRules(selected_by=MINE, affinity=WEB, affinity_keys=(HOST,)),
)
"""In one story all constrained pods have the same: pods that start later then break no constraint of earlier ones."""


class PeerStory:
    """A cluster of two tenants; the pods of one have a constraint about each other."""

    def __init__(self, random: Random) -> None:
        self._random = random
        self._rules = random.choice(RULES)
        nodes = [
            make_node(f"n{index}", random.choice([2, 4]), rack=f"r{index % 2}") for index in range(random.randint(2, 4))
        ]
        units = sum(node.allocatable["nvidia.com/gpu"] for node in nodes) // 1000
        self.cluster = Cluster(
            [replace(node, labels={**node.labels, HOST: node.name}) for node in nodes],
            [make_quota("a", random.choice([0, units // 2, units])), make_quota("b")],
        )
        self.evicted_for: dict[str, int] = {}
        self._count = 0

    def step(self) -> None:
        """Add or end some gangs, and run a cycle."""
        if self._random.random() < 0.5:
            self.cluster.add(self._new_gang())
        if self.cluster.gangs and self._random.random() < 0.2:
            del self.cluster.gangs[self._random.choice(sorted(self.cluster.gangs))]
        self.cycle()
        self.cluster.advance(self._random.choice([1, 5, 20]))

    def cycle(self) -> Decisions:
        decisions = self.cluster.cycle()
        for evict in decisions.evicts:
            self.evicted_for[evict.makes_room_for] = self.evicted_for.get(evict.makes_room_for, 0) + 1
        for admit in decisions.admits:
            for uid in admit.nodes:
                self._check_start(admit.gang, uid)
        return decisions

    def _check_start(self, gang: str, uid: str) -> None:
        placed = {pod.uid: pod for each in self.cluster.gangs.values() for pod in each.pods if pod.node}
        others = [Peer(pod.node, pod.shape.peers) for pod in placed.values() if pod.uid != uid and pod.shape.peers]
        nodes = {node.name: node for node in self.cluster.pool.nodes}
        pod = placed[uid]
        assert permits(pod.shape, nodes[pod.node], list(nodes.values()), others), f"{gang} breaks {pod.shape.peers}"

    def _new_gang(self) -> Gang:
        self._count += 1
        name, sizes = f"g{self._count:02}", [self._random.choice([1, 1, 2])] * self._random.randint(1, 3)
        if self._random.random() < 0.5:
            return make_gang(name, "b", sizes, band=LOW)
        rules = self._rules if self._random.random() < 0.8 else None
        band = {"band": LOW} if self._random.random() < 0.2 else {}
        return make_gang(name, "a", [replace(gpu_shape(size), peers=rules) for size in sizes], **band)


@pytest.mark.parametrize("seed", range(40))
def test_starts_keep_constraints_and_evictions_lead_to_starts(seed: int) -> None:
    story = PeerStory(Random(seed))
    for _ in range(25):
        story.step()
    asked = dict(story.evicted_for)
    for _ in range(30):
        story.cycle()
        story.cluster.advance(5)
    waiting = {
        name
        for name, gang in story.cluster.gangs.items()
        if name in asked and all(pod.state is PodState.WAITING for pod in gang.pods)
    }
    again = {name: number for name, number in story.evicted_for.items() if number > asked.get(name, 0) + 6}
    assert not again, f"victims for {again}, and still {waiting} wait"
