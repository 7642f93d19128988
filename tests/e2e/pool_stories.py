"""Stories of gangs that come and go in a pool of another scheduler, the same for each of them."""

from __future__ import annotations

import json
import os
import time
from dataclasses import dataclass, field
from random import Random

from tests.e2e.cluster import Cluster, Document, Platform, eventually
from tests.e2e.foreign_pool import GPU, gang_job, gpus_by_node, list_objects
from tests.e2e.test_arbiter import (
    LOW,
    consistently,
    count_pods,
    delete_workloads,
    find_condition,
    list_pods,
    pending_reason,
)

KILLS = int(os.environ.get("VKGATEWAY_KILLS", "3"))
"""How often the gateway is killed."""
SECONDS = float(os.environ.get("VKGATEWAY_SOAK_SECONDS", "40"))
"""Duration of a mixed load."""
GUARANTEED = 16
"""GPUs of the owner."""
GANG_ID = "vkgateway.io/gang-id"


def kill_story(owner: Cluster, guest: Cluster, platform: Platform, *, kind: str) -> None:
    """Kill the gateway at random moments, while gangs come and go. `kind` represents gangs at the scheduler."""
    random = Random(KILLS)
    for number in range(KILLS):
        cluster, spec = random.choice((owner, guest)), random.choice(({}, LOW))
        cluster.apply(gang_job(f"story{number}", random.randint(1, 3), random.choice((2, 4, 8)), **spec))
        if random.random() < 0.5:
            done = f"story{random.randint(0, number)}"
            cluster.try_kubectl("delete", "job", done, "--wait=false", "--ignore-not-found")
        eventually(lambda: platform.try_vkgateway("queue").code == 0, what="the gateway schedules")
        time.sleep(random.uniform(0, 2))
        platform.kill_gateway()
        assert all(amount <= 8 for amount in gpus_by_node(platform).values())
        gangs = [one["metadata"]["annotations"][GANG_ID] for one in list_objects(platform, kind)]
        assert len(gangs) == len(set(gangs)), "two attempts of a gang"
    check_nothing_left(owner, guest, platform, kind=kind)


def budget_story(owner: Cluster, platform: Platform, *, tenant: str) -> None:
    """Use up the owner's budget: gangs inside the guarantee start, others wait until it has no budget any more."""
    set_budget(platform, tenant, {"resource": GPU, "hours": 0})
    eventually(lambda: _has_used_budget(platform, tenant), what="the budget is used up")
    owner.apply(gang_job("inside", 2, GUARANTEED // 2))
    eventually(lambda: count_pods(owner, "Running", "inside") == 2, what="the guarantee is available")
    owner.apply(gang_job("beyond", 1, 8))
    (pod,) = eventually(lambda: list_pods(owner, "beyond"))
    name = pod["metadata"]["name"]
    eventually(lambda: pending_reason(owner, name) == "BudgetUsedUp", what="the reason of the gang beyond it")
    consistently(lambda: count_pods(owner, "Running", "beyond") == 0)
    set_budget(platform, tenant)
    eventually(lambda: count_pods(owner, "Running", "beyond") == 1, what="the tenant borrows again")
    assert count_pods(owner, "Running", "inside") == 2
    delete_workloads(owner)


def set_budget(platform: Platform, tenant: str, *budgets: Document) -> None:
    patch = json.dumps({"spec": {"budget": list(budgets)}})
    platform.compute.kubectl("patch", "tenant", tenant, "--type=merge", "-p", patch)


def _has_used_budget(platform: Platform, tenant: str) -> bool:
    found = find_condition(platform.compute.get("tenant", tenant), "WithinBudget")
    return bool(found.get("reason") == "BudgetUsedUp")


def check_nothing_left(owner: Cluster, guest: Cluster, platform: Platform, *, kind: str) -> None:
    """Delete all work, and wait until nothing of it is left."""
    for tenant in (owner, guest):
        tenant.kubectl("delete", "jobs,pods", "--all", "--grace-period=1", "--wait=false")
    eventually(lambda: not list_objects(platform, kind), what=f"none of {kind} left")
    eventually(lambda: not used_nodes(platform), what="no pod left")


def used_nodes(platform: Platform) -> list[str]:
    return list(gpus_by_node(platform))


@dataclass
class MixedLoad:
    """Guaranteed gangs of one tenant and low gangs of another, and whom the scheduler evicted for whom."""

    owner: Cluster
    guest: Cluster
    platform: Platform
    kind: str
    random: Random = field(default_factory=lambda: Random(7))
    ends: dict[str, float] = field(default_factory=dict)
    """When each Job of either tenant is deleted, by name."""
    sizes: dict[str, int] = field(default_factory=dict)
    """GPUs of each Job."""
    running: set[str] = field(default_factory=set)
    """Gangs whose pods all ran at the last check."""
    victims_for: dict[tuple[str, str], int] = field(default_factory=dict)
    """How often a low gang was evicted while the same guaranteed gang waited."""
    started: int = 0
    evicted: int = 0

    def run(self, seconds: float) -> None:
        """Create and delete gangs for a time, and check what must hold at every look."""
        until = time.monotonic() + seconds
        number = 0
        while time.monotonic() < until:
            if len(self.ends) < 12:
                number += 1
                self._create(number)
            for name in [name for name, end in self.ends.items() if end <= time.monotonic()]:
                self._delete(name)
            self._look()
            time.sleep(0.5)
        assert self.started, "no gang has run"
        repeated = {pair: times for pair, times in self.victims_for.items() if times > 1}
        assert not repeated, f"evicted again for the same gang: {repeated}"

    def _create(self, number: int) -> None:
        is_guest = self.random.random() < 0.5
        name = f"{'low' if is_guest else 'own'}{number}"
        count, gpus = self.random.choice((1, 1, 2, 3)), self.random.choice((2, 4, 8))
        owned = sum(size for other, size in self.sizes.items() if other.startswith("own"))
        if not is_guest and owned + count * gpus > GUARANTEED:
            return  # It would wait for the owner's other gangs, and evict no pod.
        cluster, spec = (self.guest, LOW) if is_guest else (self.owner, {})
        cluster.apply(gang_job(name, count, gpus, **spec))
        self.sizes[name] = count * gpus
        self.ends[name] = time.monotonic() + self.random.uniform(5, 30)

    def _delete(self, name: str) -> None:
        cluster = self.guest if name.startswith("low") else self.owner
        cluster.try_kubectl("delete", "job", name, "--wait=false", "--ignore-not-found")
        del self.ends[name], self.sizes[name]
        self.running.discard(name)

    def _look(self) -> None:
        assert all(amount <= 8 for amount in gpus_by_node(self.platform).values())
        running: dict[str, int] = {}
        wanted: dict[str, int] = {}
        for cluster in (self.owner, self.guest):
            for job in cluster.get("jobs")["items"]:
                wanted[job["metadata"]["name"]] = job["spec"]["parallelism"]
                assert not job["status"].get("failed"), f"{job['metadata']['name']} failed"
            for pod in cluster.get("pods")["items"]:
                if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]:
                    name = pod["metadata"]["labels"]["job-name"]
                    running[name] = running.get(name, 0) + 1
        complete = {name for name, count in wanted.items() if running.get(name) == count and name in self.ends}
        waiting = [name for name in wanted if name.startswith("own") and name in self.ends and name not in complete]
        for victim in self.running - complete:
            if victim.startswith("low") and victim in self.ends:
                self.evicted += 1
                for name in waiting:
                    self.victims_for[victim, name] = self.victims_for.get((victim, name), 0) + 1
        self.started += len(complete - self.running)
        self.running = complete
