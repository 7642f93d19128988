"""What the arbiter is told: nodes, pools, tenants' quotas and gangs, as they are at one moment. Plain data."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from vkgateway.model.names import virtual_node_name
from vkgateway.model.objects import Taint
from vkgateway.model.requests import MilliResources
from vkgateway.translate.governed import HOST_RESOURCES

PoolKey = tuple[str, str]
"""A compute cluster's name and a pool's."""

PodState = StrEnum("PodState", {"WAITING": "waiting", "PLACED": "placed", "NOTIFIED": "notified", "ENDING": "ending"})
"""Waiting: nothing of it exists in the compute cluster. Placed: admitted to a node. Notified: placed, and told that it
is evicted at its deadline. Ending: its deletion is under way."""

WAITING, PLACED, NOTIFIED, ENDING = PodState
"""The same by names of their own: in Python 3.11 the way to a member by its class takes twenty times as long."""


class Band(StrEnum):
    """Which work it is: promised within the tenant's guarantee, or filling what is idle."""

    GUARANTEED = "guaranteed"
    LOW = "low"


GUARANTEED, LOW = Band


@dataclass(frozen=True, slots=True, kw_only=True)
class Requirement:
    """One condition on a node's label; `operator` is In, NotIn, Exists, DoesNotExist, Gt or Lt, as in node affinity."""

    key: str
    operator: str
    values: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Toleration:
    """As in a pod's spec; an empty key tolerates all, an empty effect every effect."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""


@dataclass(frozen=True, slots=True)
class Shape:
    """What equal pods ask of a node; pods of one shape can stand in for each other.

    `terms` are the alternatives of the node affinity, each a conjunction; no terms: any node.
    """

    requests: tuple[tuple[str, int], ...]
    """Resource and amount in thousandths, sorted by name; zero amounts are left out."""
    terms: tuple[tuple[Requirement, ...], ...] = ()
    tolerations: tuple[Toleration, ...] = ()
    images: frozenset[str] = frozenset()
    parts: tuple[tuple[tuple[str, int], ...], ...] = ()
    """What each container is given for itself alone: devices, and in a pod of class Guaranteed whole CPUs and memory.
    None told: one container has all devices, and that is all."""

    @classmethod
    def from_requests(cls, requests: Mapping[str, int]) -> Shape:
        """A shape without any condition on the node."""
        return cls(tuple(sorted((name, amount) for name, amount in requests.items() if amount)))

    def amount_of(self, resource: str) -> int:
        """How much it asks for, in thousandths."""
        return next((amount for name, amount in self.requests if name == resource), 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Zone:
    """A NUMA zone of a node; `available` is what its node last published as free."""

    name: str
    allocatable: MilliResources
    available: MilliResources


@dataclass(frozen=True, slots=True, kw_only=True)
class Topology:
    """The NUMA zones of a node whose kubelet rejects what does not fit into one of them (policy single-numa-node)."""

    zones: tuple[Zone, ...]
    scope: str = "container"
    """`container`: each container by itself is to fit; `pod`: the pod as a whole."""
    counted: frozenset[str] = frozenset()
    """Uids of the placed pods that were there already when it was published."""
    used: MilliResources = field(default_factory=dict)
    """Devices that others held then, of `Node.used`."""
    gone: Mapping[str, Shape] = field(default_factory=dict)
    """Of `counted` those that have gone since and are known, by uid: what they held is free again, in some zone."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Node:
    """A compute node. `used` is what pods hold there that the arbiter does not place: it is never free."""

    name: str
    allocatable: MilliResources
    used: MilliResources = field(default_factory=dict)
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    images: frozenset[str] = frozenset()
    """Those that are there, of the images that pods ask for."""
    usable: bool = True
    """Ready and open for new pods. What runs on a node that is not usable stays and counts."""
    topology: Topology | None = None
    """None: it is not known, or does not matter there."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool:
    """Nodes that are handed out together.

    `governed` are the devices (extended resources) of its nodes; cells are cut from the first of them. A pool may have
    none: it has no cells then. `levels` are the node labels of the network, the widest first (domain, rack); none: all
    nodes are equally near.
    """

    key: PoolKey
    nodes: tuple[Node, ...]
    governed: tuple[str, ...]
    levels: tuple[str, ...] = ()
    reserve: int = 0
    """Thousandths of the unit that borrowing leaves idle."""
    reserve_percent: int = 0
    """The same as a part of what usable nodes have, rounded down to whole units; both given: their sum."""

    @property
    def unit_resource(self) -> str:
        """The resource that cells are cut from; empty in a pool without devices."""
        return self.governed[0] if self.governed else ""

    @property
    def loss_resource(self) -> str:
        """The resource by which lost work is measured."""
        return self.unit_resource or "cpu"

    @property
    def idle_reserve(self) -> int:
        """Return the reserve in thousandths of the unit, as of the nodes that are usable now."""
        if not self.unit_resource or not self.reserve_percent:
            return self.reserve if self.unit_resource else 0
        units = sum(node.allocatable.get(self.unit_resource, 0) for node in self.nodes if node.usable) // 1000
        return self.reserve + units * self.reserve_percent // 100 * 1000

    def requests_devices(self, shape: Shape) -> bool:
        """Return whether a pod of this shape asks for a device of the pool."""
        return any(name in self.governed for name, _ in shape.requests)

    def share_requests(self, shape: Shape) -> Iterator[tuple[str, int]]:
        """Yield the requests of a shape that count for a tenant's share of the pool, with amounts in thousandths.

        They are devices; cpu and memory count only for pods without devices, since other pods bring them along.
        """
        devices = [(name, amount) for name, amount in shape.requests if name in self.governed]
        yield from devices or ((name, amount) for name, amount in shape.requests if name in HOST_RESOURCES)


@dataclass(frozen=True, slots=True, kw_only=True)
class Quota:
    """A tenant's part of a pool. A resource that `limit` does not name is not limited by it.

    `cells` are the pieces of the guarantee in units of the pool (GPUs): `(8, 8, 1)` are two whole nodes of 8 and a
    single; none given: they are cut from the guarantee, as large as the pool's nodes allow.
    """

    tenant: str
    pool: PoolKey
    guarantee: MilliResources = field(default_factory=dict)
    limit: MilliResources = field(default_factory=dict)
    weight: float = 1.0
    cells: tuple[int, ...] = ()
    preempts: bool = True
    """Within the tenant a higher priority preempts a lower one."""
    granted: float = 0.0
    """When it was granted (seconds since the epoch): where nodes die, the last granted is reduced first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pod:
    """One pod of a gang; `uid` is the tenant pod's."""

    uid: str
    shape: Shape
    rank: int = 0
    """Its place in the gang: lower ranks are its core, and neighbours in rank are placed near each other."""
    role: str = ""
    """The kind of task it is where a gang's pods are not equal: launcher, worker, ps."""
    state: PodState = PodState.WAITING
    pool: PoolKey | None = None
    node: str = ""
    """Where it is placed; empty while it waits."""
    borrowed: bool = False
    """Placed outside its tenant's cells: may be evicted."""
    since: float = 0.0
    """When it was placed (seconds since the epoch)."""
    deadline: float = 0.0
    """Notified: when it is deleted. Ending: when it will have gone at the latest."""
    evicted_for: str = ""
    """The gang that its eviction makes room for."""
    behind: str = ""
    """The gang in whose reserved place it was started (`Admit.behind`): it goes as soon as that one can start there."""
    pools: tuple[PoolKey, ...] = ()
    """Where it may run, best liked first. Empty: in each pool of its gang, as all the gang's pods may then."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PreemptionPlan:
    """Where a waiting gang starts as soon as those have gone who stand there; the room is kept for it until then."""

    pool: PoolKey
    nodes: Mapping[str, str]
    """Pod uid to node."""
    borrowed: bool
    made: float = 0.0
    """When it was made (seconds since the epoch): of plans that share nodes the older starts first."""
    also: tuple[PreemptionPlan, ...] = ()
    """The plans for the gang's pods in further pools."""
    leaves: int | None = None
    """Thousandths of the unit that are idle beside it when it starts. None, where it borrows: the pool's reserve.

    A plan that takes only what lower work of its tenant leaves need not fill up a reserve that others have used.
    """


@dataclass(frozen=True, slots=True, kw_only=True)
class Gang:
    """Pods that start together or not at all; a lone pod is a gang of one. Times are seconds since the epoch.

    `pods` holds those that exist and have not ended. Fewer than `minimum` of them, or fewer of a role than
    `role_minimum` says: its members are still being created. It runs on nodes of one pool out of `pools`; if its pods
    name pools themselves (`Pod.pools`), pods that name the same pools run in one of them.
    """

    id: str
    tenant: str
    pods: tuple[Pod, ...]
    pools: tuple[PoolKey, ...]
    """Where it may run, best liked first."""
    band: Band = Band.GUARANTEED
    priority: int = 0
    preempts: bool = True
    """It may have others of its tenant evicted that are of a lower rank."""
    created: float = 0.0
    minimum: int = 1
    role_minimum: Mapping[str, int] = field(default_factory=dict)
    elastic: bool = False
    """Its pods beyond the minimum may come and go one by one."""
    maximum: int | None = None
    """So many of its pods run at once at most; None: all that there are. The minimum comes first."""
    required_level: str = ""
    """All its pods within one value of this node label."""
    preferred_level: str = ""
    run_limit: float | None = None
    """Seconds after which it will have ended, as its owner declared."""
    expected_run: float | None = None
    """Seconds that gangs like it have run, where nothing was declared."""
    minimum_run: float = 0.0
    """Seconds for which it is evicted only if nothing else will do."""
    checkpoint: float = 0.0
    """When its work was last saved; 0: never."""
    restart_cost: float = 0.0
    """GPU-seconds that a restart takes, as its owner declared."""
    notice: float = 0.0
    """Seconds between the notice of an eviction and the deletion."""
    brief_run: float = 0.0
    """Pods that ran for less than this many seconds get `brief_notice` instead, where that is shorter."""
    brief_notice: float = 0.0
    grace: float = 30.0
    """Seconds that its pods may take to end, capped by policy."""
    plan: PreemptionPlan | None = None
    """What the last cycle planned for it. Where that was lost it is planned anew, perhaps for other nodes."""

    @property
    def part_info(self) -> GangPart | None:
        """Of which gang it is a part; None: it is a whole gang."""
        return None

    @property
    def whole_id(self) -> str:
        """The id of the gang that it is, or is a part of."""
        return self.id

    @property
    def part_ids(self) -> tuple[str, ...]:
        """The ids of all parts of the gang; of a whole gang, its id."""
        return (self.id,)


@dataclass(frozen=True, slots=True, kw_only=True)
class GangPart:
    """How a part of a gang belongs to the others."""

    whole_id: str
    """The gang's id."""
    number: int
    part_ids: tuple[str, ...]
    """The ids of all its parts."""
    pools: tuple[tuple[PoolKey, ...], ...]
    """Where each of them may run."""
    pods_elsewhere: tuple[Pod, ...] = ()
    """The gang's placed pods that are in other parts: without this part they are of no use."""
    equivalence_key: Hashable = None
    """Equal for gangs whose parts can stand in for each other; None: no other gang is like it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartGang(Gang):
    """The pods of a gang that may run in the same pools, where the others may not.

    The arbiter makes it out of a gang whose pods name different pools, and handles it like a gang, except that all
    parts of a gang start together and are evicted together. No snapshot holds one.
    """

    own_part: GangPart

    @property
    def part_info(self) -> GangPart | None:
        """As of the gang."""
        return self.own_part

    @property
    def whole_id(self) -> str:
        """As of the gang."""
        return self.own_part.whole_id

    @property
    def part_ids(self) -> tuple[str, ...]:
        """As of the gang."""
        return self.own_part.part_ids


@dataclass(frozen=True, slots=True, kw_only=True)
class Policy:
    """Rules of the platform."""

    age_cap: float = 3600.0
    """Seconds of waiting beyond which a gang grows no older: what raises its place in line."""
    age_weight: float = 1.0 / 60.0
    """Priority that a second of waiting is worth."""
    run_margin: float = 1.25
    """Expected run times are taken this many times longer when a start is promised by them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Snapshot:
    """Everything at one moment."""

    pools: tuple[Pool, ...]
    quotas: tuple[Quota, ...]
    gangs: tuple[Gang, ...]
    policy: Policy = field(default_factory=Policy)


def node_name(key: PoolKey) -> str:
    """Return the name of the pool's virtual node."""
    return virtual_node_name(key[1], key[0])
