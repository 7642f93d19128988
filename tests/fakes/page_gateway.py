"""Gateway behind the page whose gangs a test submits, with decisions of the real arbiter."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

import msgspec

from vkgateway.api.objects import Condition, Meta
from vkgateway.api.types import (
    ApiServerStatus,
    ComputeCluster,
    ComputeClusterStatus,
    Tenant,
    TenantPoolStatus,
    TenantStatus,
)
from vkgateway.page.facts import Observation
from vkgateway.page.timeline import Timeline
from vkgateway.scheduler.core.cycle import decide
from vkgateway.scheduler.core.decisions import Decisions
from vkgateway.scheduler.core.reasons.gang_names import Names
from vkgateway.scheduler.core.snapshot import (
    Band,
    Gang,
    Node,
    Pod,
    PodState,
    Pool,
    PoolKey,
    Quota,
    Shape,
    Snapshot,
)

GPU = "nvidia.com/gpu"
A100: PoolKey = ("local", "a100")
NOW = 1_800_000_000.0
"""Seconds since the epoch."""
NODE_GPUS = 8
SINCE = "2027-01-15T08:00:00Z"


def gpus(count: int) -> dict[str, int]:
    """Return an amount of GPUs in thousandths."""
    return {GPU: count * 1000}


def make_pool(nodes: int, *, key: PoolKey = A100) -> Pool:
    """Return a pool of nodes with 8 GPUs."""
    found = tuple(Node(name=f"{key[1]}-{number:04}", allocatable=gpus(NODE_GPUS)) for number in range(nodes))
    return Pool(key=key, nodes=found, governed=(GPU,))


def make_gang(
    tenant: str,
    name: str,
    *,
    namespace: str = "team",
    pods: int = 1,
    each: int = 8,
    band: Band = Band.GUARANTEED,
    created: float = NOW,
) -> Gang:
    """Return a waiting gang of equal pods."""
    shape = Shape.from_requests(gpus(each))
    members = tuple(Pod(uid=f"{tenant}-{name}-{number}", shape=shape, rank=number) for number in range(pods))
    return Gang(
        id=f"{tenant}/{namespace}/job/{name}",
        tenant=tenant,
        pods=members,
        pools=(A100,),
        band=band,
        created=created,
        minimum=pods,
        notice=30.0,
    )


def make_tenant(name: str, *, gpus_each: int = 16, uid: str = "") -> Tenant:
    """Return a tenant whose control plane is ready; a message that it must not read names others."""
    ready = Condition(type="Ready", status="True", reason="Ready", last_transition_time=SINCE)
    accepted = Condition(type="Accepted", status="True", reason="Accepted", message="beside alpha, beta, a100-0001")
    pool = TenantPoolStatus(
        name="a100", compute_cluster="local", node_name="a100.local", ready=True, capacity={GPU: str(gpus_each)}
    )
    status = TenantStatus(
        phase="Ready",
        conditions=(accepted, ready),
        pools=(pool,),
        api_server=ApiServerStatus(url=f"https://{name}.example:6443", port=6443, version="v1.36.3"),
    )
    return Tenant(metadata=Meta(name=name, uid=uid or f"uid-of-{name}"), status=status)


def make_cluster(name: str = "local") -> ComputeCluster:
    """Return a connected compute cluster."""
    connected = Condition(type="Connected", status="True", reason="Connected", last_transition_time=SINCE)
    return ComputeCluster(
        metadata=Meta(name=name), status=ComputeClusterStatus(version="v1.36.3", conditions=(connected,))
    )


@dataclass
class FakeGateway:
    """Gateway that decides with the real arbiter whenever a test calls `run_cycle`."""

    pools: tuple[Pool, ...] = ()
    quotas: tuple[Quota, ...] = ()
    gangs: dict[str, Gang] = field(default_factory=dict)
    tenants: dict[str, Tenant] = field(default_factory=dict)
    compute_clusters: dict[str, ComputeCluster] = field(default_factory=dict)
    leading: bool = True
    now: float = NOW
    timeline: Timeline = field(default_factory=Timeline)
    last: tuple[Snapshot, Decisions, float] | None = None
    names: dict[str, tuple[str, str]] = field(default_factory=dict)
    asked: list[bytes] = field(default_factory=list)

    def add_gangs(self, gangs: Iterable[Gang]) -> None:
        """Submit gangs."""
        self.gangs |= {gang.id: gang for gang in gangs}

    def remove_gang(self, gang: str) -> None:
        """End a gang: its pods no longer exist."""
        del self.gangs[gang]

    def run_cycle(self) -> Decisions:
        """Decide, carry the decisions out, and return them."""
        snapshot = Snapshot(pools=self.pools, quotas=self.quotas, gangs=tuple(self.gangs.values()))
        decisions = decide(snapshot, self.now)
        self.last = snapshot, decisions, self.now
        self.timeline.add_cycle(
            snapshot,
            decisions,
            self.now,
            pod_name=lambda _, uid: self.names.get(uid, ("", ""))[1],
            uid_of=lambda tenant: self.tenants[tenant].metadata.uid if tenant in self.tenants else "",
        )
        _carry_out(self.gangs, decisions, self.now)
        self.now += 1.0
        return decisions

    def observe(self) -> Observation:
        """See `PageSource`."""
        return Observation(
            time=self.now,
            leading=self.leading,
            cycle=self.last if self.leading else None,
            tenants=dict(self.tenants),
            compute_clusters=dict(self.compute_clusters),
            timeline=self.timeline,
        )

    def pod_names(self) -> Names:
        """See `PageSource`."""
        return self.names

    def answer_what_if(self, question: bytes) -> tuple[int, bytes]:
        """Return the question itself; see `PageSource`."""
        self.asked.append(question)
        return 200, msgspec.json.encode({"asked": question.decode()})


def small_gateway() -> FakeGateway:
    """Return a gateway with two tenants in a pool of four nodes: both run, borrow and wait."""
    gateway = FakeGateway(
        pools=(make_pool(4),),
        quotas=(
            Quota(tenant="alpha", pool=A100, guarantee=gpus(16)),
            Quota(tenant="beta", pool=A100, guarantee=gpus(8)),
        ),
        tenants={name: make_tenant(name) for name in ("alpha", "beta")},
        compute_clusters={"local": make_cluster()},
    )
    gateway.add_gangs([make_gang("beta", "pretrain", pods=3, band=Band.LOW), make_gang("alpha", "eval")])
    gateway.run_cycle()
    gateway.add_gangs([make_gang("alpha", "train"), make_gang("beta", "sweep", pods=4, band=Band.LOW)])
    gateway.run_cycle()
    return gateway


def _carry_out(gangs: dict[str, Gang], decisions: Decisions, now: float) -> None:
    """Change the pods of the gangs as the decisions say."""
    changes: dict[str, dict[str, object]] = {}
    for admit in decisions.admits:
        for uid, node in admit.nodes.items():
            changes[uid] = {
                "state": PodState.PLACED,
                "pool": admit.pool,
                "node": node,
                "borrowed": admit.borrowed,
                "since": now,
            }
    for evict in decisions.evicts:
        for uid in evict.pods:
            changes[uid] = {
                "state": PodState.NOTIFIED,
                "deadline": evict.deadline,
                "evicted_for": evict.makes_room_for,
                "borrowed": True,
            }
    for gang_id, gang in gangs.items():
        pods = tuple(replace(pod, **changes.get(pod.uid, {})) for pod in gang.pods)  # type: ignore[arg-type]
        gangs[gang_id] = replace(gang, pods=pods, plan=decisions.plans.get(gang_id))
