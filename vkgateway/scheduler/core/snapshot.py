"""Input of a scheduling cycle: nodes, pools, quotas and gangs at one moment. Plain data."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vkgateway.api.names import virtual_node_name
from vkgateway.api.objects import Taint
from vkgateway.api.requests import MilliResources
from vkgateway.scheduler.core.past_share import PastShare
from vkgateway.scheduler.core.peer_rules import PeerRules
from vkgateway.scheduler.governed import HOST_RESOURCES

PoolKey = tuple[str, str]
"""Name of a compute cluster and name of a pool."""

PodState = StrEnum("PodState", {"WAITING": "waiting", "PLACED": "placed", "NOTIFIED": "notified", "ENDING": "ending"})
"""Waiting: no compute pod exists. Placed: admitted to a node. Notified: placed, and notified of its eviction at the
deadline. Ending: its deletion has begun."""

WAITING, PLACED, NOTIFIED, ENDING = PodState
"""Module-level names of the members: in Python 3.11 access through the class takes twenty times as long."""


class Band(StrEnum):
    """Kind of work: guaranteed work may use its tenant's guarantee; low work fills idle capacity."""

    GUARANTEED = "guaranteed"
    LOW = "low"


GUARANTEED, LOW = Band


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """Condition on a node label; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt, as in node affinity."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """Toleration as in a pod's spec: an empty key matches all taints, an empty effect matches every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """Requests and node constraints that equal pods share; pods of one shape are interchangeable.

    `terms` are the alternatives of the node affinity, each a conjunction. Without terms, every node matches.
    """

    requests: tuple[tuple[str, int], ...]
    """Resource and amount in thousandths, sorted by name, without zero amounts."""
    terms: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    images: frozenset[str] = frozenset()
    parts: tuple[tuple[tuple[str, int], ...], ...] = ()
    """Exclusive resources of each container: devices and, in a pod of QoS class Guaranteed, whole CPUs and memory.
    Empty: one container has all devices and no other exclusive resource."""
    peers: PeerRules | None = None
    """Hard constraints about other pods; None: the pod has none, and no pod has any about it."""

    @classmethod
    def from_requests(cls, requests: Mapping[str, int]) -> Shape:
        """Return a shape without node constraints."""
        return cls(tuple(sorted((name, amount) for name, amount in requests.items() if amount)))

    def amount_of(self, resource: str) -> int:
        """Return the requested amount of a resource, in thousandths."""
        return next((amount for name, amount in self.requests if name == resource), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """NUMA zone of a node; `available` is the free amount that the node published last."""

    name: str
    allocatable: MilliResources
    available: MilliResources


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """NUMA zones of a node whose kubelet rejects pods that do not fit into one zone (policy single-numa-node)."""

    zones: tuple[Zone, ...]
    scope: str = "container"
    """`container`: each container must fit into one zone; `pod`: the whole pod must."""
    counted: frozenset[str] = frozenset()
    """UIDs of the placed pods that the published amounts include."""
    used: MilliResources = field(default_factory=dict)
    """Devices of `Node.used` that unmanaged pods held at the time of publication."""
    gone: Mapping[str, Shape] = field(default_factory=dict)
    """Pods of `counted` that ended after the publication, by uid: their resources are free again in some zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """Compute node. `used` is what pods hold that the arbiter does not place: it never becomes free."""

    name: str
    allocatable: MilliResources
    used: MilliResources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    images: frozenset[str] = frozenset()
    """Images present on the node, among those that pods request."""
    usable: bool = True
    """Ready and schedulable. Pods on an unusable node stay there and count."""
    topology: Topology | None = None
    """None: unknown or irrelevant."""
    peers: Mapping[str, int] = field(default_factory=dict)
    """Number of pods that the arbiter does not place, by each selector of `PeerRules` that selects them."""
    failed_gangs: int = 0
    """Number of gangs of which pods failed there lately. The node is chosen last; 0: too few of them failed."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are scheduled together.

    `governed` are the devices (extended resources) of its nodes; the first of them is the unit of cells. A pool without
    devices has no cells. `levels` are the node labels of the network topology, the widest first (domain, rack); without
    levels, all nodes are equally near.
    """

    key: PoolKey
    nodes: tuple[Node, ...]
    governed: tuple[str, ...]
    levels: tuple[str, ...] = ()
    reserve: int = 0
    """Thousandths of the unit that borrowing gangs must leave idle."""
    reserve_percent: int = 0
    """Percentage of the units of usable nodes, rounded down to whole units. It adds to `reserve`."""
    virtual_nodes_by: str = ""
    """Node label, of which each value is one virtual node, and the nodes without it another. Empty: all nodes are."""
    low_yields: bool = True
    """Low pods of all tenants make room for gangs of the guaranteed band that borrow. False: only for guarantees, and
    for work of their own tenant."""
    enforces_limits: bool = False
    """Gangs whose run reaches its limit are evicted."""
    default_limits: Mapping[Band, float] = field(default_factory=dict)
    """By band, the enforced limit in seconds of gangs that declare none; missing: no limit."""

    @property
    def unit_resource(self) -> str:
        """Resource whose amounts the cells divide; empty in a pool without devices."""
        return self.governed[0] if self.governed else ""

    @property
    def loss_resource(self) -> str:
        """Resource in whose seconds lost work is measured."""
        return self.unit_resource or "cpu"

    @property
    def idle_reserve(self) -> int:
        """Return the reserve in thousandths of the unit, for the nodes that are usable now."""
        if not self.unit_resource or not self.reserve_percent:
            return self.reserve if self.unit_resource else 0
        units = sum(node.allocatable.get(self.unit_resource, 0) for node in self.nodes if node.usable) // 1000
        return self.reserve + units * self.reserve_percent // 100 * 1000

    def requests_devices(self, shape: Shape) -> bool:
        """Return whether a pod of this shape requests a device of the pool."""
        return any(name in self.governed for name, _ in shape.requests)

    def share_requests(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Yield the requests of a shape that count for a tenant's share of the pool, with amounts in thousandths.

        These are devices. CPU and memory count only for pods without devices.
        """
        devices = [(name, amount) for name, amount in shape.requests if name in self.governed]
        yield from devices or ((name, amount) for name, amount in shape.requests if name in HOST_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """Quota of a tenant in a pool. `limit` limits only the resources that it names.

    `cells` are the sizes of the guarantee's cells in units of the pool (GPUs): `(8, 8, 1)` are two whole nodes of 8 and
    a single. Without `cells`, the guarantee is divided into cells as large as the pool's nodes allow.
    """

    tenant: str
    pool: PoolKey
    guarantee: MilliResources = field(default_factory=dict)
    limit: MilliResources = field(default_factory=dict)
    weight: float = 1.0
    cells: tuple[int, ...] = ()
    preempts: bool = True
    """Within the tenant, gangs of higher priority preempt gangs of lower priority."""
    granted: float = 0.0
    """Time of the grant (seconds since the epoch). When nodes fail, the latest grant is reduced first."""
    stopped: tuple[str, ...] = ()
    """Resources whose budget is used up, sorted: pods that request them start only inside the guarantee."""
    budget_hours: Mapping[str, float] = field(default_factory=dict)
    """Monthly unit-hours of the used-up budgets by resource, for messages; missing: unknown. 0: it never borrows."""

    def may_borrow(self, pods: Iterable[Pod]) -> bool:
        """Return whether pods may start outside the guarantee."""
        return not self.stopped or not any(pod.shape.amount_of(name) for pod in pods for name in self.stopped)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """Pod of a gang; `uid` is the tenant pod's."""

    uid: str
    shape: Shape
    rank: int = 0
    """Rank in the gang: the lowest ranks are its min members, and pods of adjacent ranks are placed close together."""
    role: str = ""
    """Task type in a gang of unequal pods: launcher, worker, ps."""
    state: PodState = PodState.WAITING
    pool: PoolKey | None = None
    node: str = ""
    """Node of the pod; empty while it waits."""
    borrowed: bool = False
    """Outside its tenant's guarantee: the pod may be evicted."""
    since: float = 0.0
    """Time of the placement (seconds since the epoch)."""
    deadline: float = 0.0
    """Notified: time of the deletion. Ending: latest time at which the pod terminates."""
    evicted_for: str = ""
    """Gang that needs the resources of this evicted pod."""
    limit_reached: bool = False
    """Evicted at its gang's run limit: the eviction is never withdrawn."""
    behind: str = ""
    """Gang whose reservation the pod backfills (`Admit.behind`): the pod is evicted when that gang can start there."""
    pools: tuple[PoolKey, ...] = ()
    """Pools in which the pod may run, the preferred one first. Empty: the pools of its gang."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPlan:
    """Nominated nodes of a waiting gang, reserved for it until the victims there terminate."""

    pool: PoolKey
    nodes: Mapping[str, str]
    """Node name by pod uid."""
    borrowed: bool
    created: float = 0.0
    """Time of creation (seconds since the epoch). Of plans that share nodes, the oldest starts first."""
    also: tuple[PreemptionPlan, ...] = ()
    """Plans for the gang's pods in other pools."""
    leaves: int | None = None
    """Thousandths of the unit that stay idle when the gang starts. None for a borrowing gang: the pool's reserve.

    A plan that uses only resources of lower work of its tenant need not refill a reserve that other pods use.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start all or nothing; a single pod is a gang of one. Times are seconds since the epoch.

    `pods` holds the pods that exist and have not ended. With fewer than `minimum` pods, or fewer of a role than
    `role_minimum`, members are still missing. The gang runs on nodes of one of its `pools`. If its pods name pools
    (`Pod.pools`), the pods that name the same pools run in one of them.
    """

    id: str
    tenant: str
    pods: tuple[Pod, ...]
    pools: tuple[PoolKey, ...]
    """Pools in which the gang may run, the preferred one first."""
    band: Band = Band.GUARANTEED
    priority: int = 0
    preempts: bool = True
    """May preempt gangs of its tenant that have a lower rank."""
    created: float = 0.0
    minimum: int = 1
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    elastic: bool = False
    """Its pods beyond the minimum may start and stop one by one."""
    maximum: int | None = None
    """Highest number of its pods that run at the same time; None: no limit. The minimum takes precedence."""
    required_level: str = ""
    """Node label of which all its pods must share one value."""
    preferred_level: str = ""
    run_limit: float | None = None
    """Seconds after which it ends, as declared by its owner. A pool may enforce it (`Pool.enforces_limits`)."""
    expected_run: float | None = None
    """Observed run time of similar gangs in seconds, where no limit is declared."""
    minimum_run: float = 0.0
    """Seconds of run time before which it is evicted only as a last resort."""
    checkpoint: float = 0.0
    """Time of the last checkpoint; 0: none. With one in the future, an eviction loses nothing."""
    restart_cost: float = 0.0
    """Cost of a restart in GPU-seconds, as declared by its owner."""
    notice: float = 0.0
    """Seconds between the eviction notice and the deletion."""
    brief_run: float = 0.0
    """Pods that ran for less than this number of seconds get `brief_notice` where it is shorter."""
    brief_notice: float = 0.0
    grace: float = 30.0
    """Termination grace period of its pods in seconds, capped by policy."""
    plan: PreemptionPlan | None = None
    """Plan of the last cycle. If it was lost, the arbiter plans again, perhaps on other nodes."""
    short: bool = False
    """It ran with its min members, and some or all of them failed, were deleted or lost their node. The pods that
    replace them come before all other pending pods of its tenant."""
    lost: tuple[Pod, ...] = ()
    """Min members that a short gang lost and that no pod replaces yet, as they ran. Their places in the guarantee are
    held until `Pod.deadline`."""

    @property
    def part_info(self) -> GangPart | None:
        """Membership of a part in its gang; None: a whole gang."""
        return None

    @property
    def whole_id(self) -> str:
        """Id of the gang, or of the gang that it is a part of."""
        return self.id

    @property
    def part_ids(self) -> tuple[str, ...]:
        """Ids of all parts of the gang; of a whole gang, its id."""
        return (self.id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """Membership of a part in its gang."""

    whole_id: str
    """Id of the gang."""
    number: int
    part_ids: tuple[str, ...]
    """Ids of all parts."""
    pools: tuple[tuple[PoolKey, ...], ...]
    """Pools in which each part may run."""
    pods_elsewhere: tuple[Pod, ...] = ()
    """Placed pods of the gang in other parts: without this part they do no work."""
    run_ends: bool = False
    """The gang's run ends at its limit."""
    equivalence_key: Hashable = None
    """Equal for gangs whose parts are interchangeable; None: no other gang is equivalent."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGang(Gang):
    """Pods of a gang that may run in the same pools, which the gang's other pods may not.

    The arbiter splits a gang whose pods name different pools into parts. It schedules each part like a gang, but starts
    and evicts all parts of a gang together. No snapshot holds a part.
    """

    own_part: GangPart

    @property
    def part_info(self) -> GangPart | None:
        """Membership of the part in its gang."""
        return self.own_part

    @property
    def whole_id(self) -> str:
        return self.own_part.whole_id

    @property
    def part_ids(self) -> tuple[str, ...]:
        return self.own_part.part_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Scheduling rules of the platform."""

    age_cap: float = 3600.0
    """Seconds of waiting after which a gang's age stops raising its place in the queue."""
    age_weight: float = 1.0 / 60.0
    """Priority that one second of waiting adds."""
    run_margin: float = 1.25
    """Factor by which observed run times are lengthened when they promise a start."""
    half_life: float = 0.0
    """Seconds after which half of a tenant's past share is forgiven; 0: the past does not count."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Pools, quotas, gangs and policy at one moment."""

    pools: tuple[Pool, ...]
    quotas: tuple[Quota, ...]
    gangs: tuple[Gang, ...]
    policy: Policy = field(default_factory=Policy)
    past_shares: tuple[PastShare, ...] = ()
    """By tenant and pool; missing: the tenant borrowed nothing."""


def have_peer_rules(pods: Iterable[Pod]) -> bool:
    """Return whether hard constraints about other pods concern any of these pods."""
    for pod in pods:  # noqa: SIM110 - called for each placement, and a loop is far quicker than `any`
        if pod.shape.peers is not None:
            return True
    return False


def node_name(key: PoolKey) -> str:
    """Return the name of the pool's virtual node."""
    return virtual_node_name(key[1], key[0])
