"""Table of growth: a row for each figure, a column for each number of tenants, and the growth per tenant."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Generic, NamedTuple, Protocol, TypeVar

from bench.idlemeter import BUSY, COMPUTE, ETCD, GATEWAY, OTHER, PLAIN, CordonFigures, IdleFigures
from bench.light import Delays
from bench.objectcosts import ObjectCost
from bench.outcome import Cell, Outcome, Target
from bench.residents import LEASE_SECONDS, OPERATOR_EVERY, PODS_EACH
from bench.takeover import TakeoverFigures
from bench.timeline import summarize_delays

FIRST_POD_S: Final = 8.0
GROWTH_NOTE: Final = (
    "per tenant: growth from the first to the last size. bend: growth per tenant up to the last size, relative to that "
    "before; 1 is linear."
)
_CLUSTERS: Final = ("management", "compute")


@dataclass(frozen=True, slots=True, kw_only=True)
class RestartFigures:
    """Seconds from the start of a killed gateway until it is ready, and to its first and last repair."""

    ready: float
    first: float
    last: float


@dataclass(frozen=True, slots=True, kw_only=True)
class SizeFigures:
    """Figures at one number of tenants. `operators` is the number of tenants with an operator."""

    tenants: int
    operators: int
    idle: IdleFigures
    cordons: CordonFigures
    restart: RestartFigures
    takeover: TakeoverFigures
    delays: Delays

    def per_tenant(self, values: Mapping[str, float], group: str) -> float:
        """Return the mean of a group of tenants, 0 if the group is empty."""
        count = self.operators if group == BUSY else self.tenants - self.operators
        return values.get(group, 0.0) / count if count else 0.0


class HasTenants(Protocol):
    """Figures at one number of tenants."""

    @property
    def tenants(self) -> int:
        """Number of tenants."""


SizeT = TypeVar("SizeT", bound=HasTenants)


class Figure(NamedTuple, Generic[SizeT]):
    """Row of the table. `grows` says that its growth per tenant is meaningful."""

    title: str
    digits: int
    grows: bool
    read: Callable[[SizeT], float]


FIGURES: Final[tuple[Figure[SizeFigures], ...]] = (
    Figure("gateway, PSS, MiB", 0, True, lambda size: size.idle.pss[GATEWAY]),
    Figure("gateway, % of a core", 1, True, lambda size: size.idle.cpu[GATEWAY]),
    Figure("tenant without operator, PSS, MiB", 0, False, lambda size: size.per_tenant(size.idle.pss, PLAIN)),
    Figure("tenant without operator, % of a core", 2, False, lambda size: size.per_tenant(size.idle.cpu, PLAIN)),
    Figure("tenant with operator, PSS, MiB", 0, False, lambda size: size.per_tenant(size.idle.pss, BUSY)),
    Figure("tenant with operator, % of a core", 2, False, lambda size: size.per_tenant(size.idle.cpu, BUSY)),
    Figure("etcd, PSS, MiB", 0, True, lambda size: size.idle.pss[ETCD]),
    Figure("etcd, % of a core", 1, True, lambda size: size.idle.cpu[ETCD]),
    Figure("etcd, MiB in use", 1, True, lambda size: size.idle.datastore),
    Figure("compute API server, PSS, MiB", 0, True, lambda size: size.idle.pss[COMPUTE]),
    Figure("compute API server, % of a core", 1, True, lambda size: size.idle.cpu[COMPUTE]),
    Figure("rest of the compute cluster, PSS, MiB", 0, True, lambda size: size.idle.pss[OTHER]),
    Figure("rest of the compute cluster, % of a core", 1, True, lambda size: size.idle.cpu[OTHER]),
    Figure("requests/s to management and compute cluster", 2, True, lambda size: size.idle.requests_to(*_CLUSTERS)),
    Figure("requests/s to tenants", 2, True, lambda size: size.idle.requests_to("tenant")),
    Figure("watches of management and compute cluster", 0, True, lambda size: size.idle.watches_of(*_CLUSTERS)),
    Figure("watches of tenants", 0, True, lambda size: size.idle.watches_of("tenant")),
    Figure("TCP connections of the gateway", 0, True, lambda size: size.idle.connections),
    Figure("cordoned node: CPU of the gateway, ms", 0, True, lambda size: size.cordons.cpu_ms),
    Figure("cordoned node: requests to tenants", 0, True, lambda size: size.cordons.requests),
    Figure("restart: ready, s", 2, True, lambda size: size.restart.ready),
    Figure("restart: first repair, s", 2, True, lambda size: size.restart.first),
    Figure("restart: last repair, s", 2, True, lambda size: size.restart.last),
    Figure("leader change: first new pod, s", 2, True, lambda size: size.takeover.first),
    Figure("leader change: a new pod of each tenant, s", 2, True, lambda size: size.takeover.last),
    Figure("standby gateway, PSS, MiB", 0, True, lambda size: size.takeover.standby_pss),
    Figure("light: forward p50, ms", 1, False, lambda size: 1000 * summarize_delays(size.delays.forward)[0]),
    Figure("light: forward p99, ms", 1, False, lambda size: 1000 * summarize_delays(size.delays.forward)[1]),
    Figure("light: mirror p50, ms", 1, False, lambda size: 1000 * summarize_delays(size.delays.mirror)[0]),
    Figure("light: mirror p99, ms", 1, False, lambda size: 1000 * summarize_delays(size.delays.mirror)[1]),
    Figure("free memory of the machine, GiB", 1, False, lambda size: size.idle.available / 1024),
)


def build_outcome(
    sizes: Sequence[SizeFigures], objects: Sequence[ObjectCost], *, reserve_gib: float, seconds: float
) -> Outcome:
    """Return the table, with what the last size shows in the notes."""
    last = sizes[-1]
    return Outcome(
        columns=build_columns(sizes),
        rows=build_rows(FIGURES, sizes),
        targets=[
            Target(what=f"{what}, {last.tenants} tenants", seen=round(seen, 2), limit=FIRST_POD_S, unit="s")
            for what, seen in (
                ("first repair after a restart", last.restart.first),
                ("first new pod after the leader's kill", last.takeover.first),
            )
        ],
        notes=[
            *_build_notes(last, reserve_gib=reserve_gib, seconds=seconds),
            *(cost.describe() for cost in objects),
        ],
    )


def build_columns(sizes: Sequence[HasTenants]) -> list[str]:
    """Return the columns of a table with these numbers of tenants."""
    return ["figure", *(f"{size.tenants} tenants" for size in sizes), "per tenant", "bend"]


def build_rows(figures: Sequence[Figure[SizeT]], sizes: Sequence[SizeT]) -> list[list[Cell]]:
    """Return a row for each figure."""
    return [_build_row(figure, sizes) for figure in figures]


def _build_row(figure: Figure[SizeT], sizes: Sequence[SizeT]) -> list[Cell]:
    values = [figure.read(size) for size in sizes]
    row: list[Cell] = [figure.title, *(round(value, figure.digits) for value in values)]
    counts = [size.tenants for size in sizes]
    if not figure.grows or len(sizes) < 2:
        return [*row, None, None]
    return [*row, round(_slope(counts, values, 0, -1), figure.digits + 2), growth_bend(counts, values)]


def growth_bend(counts: Sequence[int], values: Sequence[float]) -> float | None:
    """Return the growth per tenant between the last two sizes, relative to that from the first to the last but one.

    1 means linear growth. None: there are fewer than three sizes, or the figure did not grow.
    """
    if len(counts) < 3:
        return None
    first = _slope(counts, values, 0, -2)
    return round(_slope(counts, values, -2, -1) / first, 1) if first > 0 else None


def _slope(counts: Sequence[int], values: Sequence[float], start: int, end: int) -> float:
    return (values[end] - values[start]) / (counts[end] - counts[start])


def _build_notes(last: SizeFigures, *, reserve_gib: float, seconds: float) -> list[str]:
    rates = sorted(last.idle.requests.items(), key=lambda entry: -entry[1])
    requests = ", ".join(f"{cluster} {method} {rate:.2f}" for (cluster, method), rate in rates if rate >= 0.005)
    return [
        f"Each tenant has {PODS_EACH} running pods on hollow nodes. The first of every {OPERATOR_EVERY} tenants has a "
        "client that acts like an operator: it watches pods, ConfigMaps and Services of all namespaces, and renews a "
        f"Lease every {LEASE_SECONDS:.0f} s. Nothing else happens for {seconds:.0f} s of memory, CPU and requests.",
        "cordoned node: a node of the tenants' pool becomes unusable or usable again, so all virtual nodes change.",
        "restart: one pod of each tenant ends, one is deleted by force and one is created while the gateway is down. "
        "Ready is a 200 of /readyz, a repair is one of these changes on the other side.",
        "leader change: from kill -9 of the leader to new pods in the compute cluster, with a standby gateway. Each "
        "tenant creates one pod at that moment. Both gateways have the default settings of leaderElection. On this "
        "platform, the standby advertises the leader's port.",
        "light: pods of the first tenants, 10 a second, while all other tenants are idle.",
        GROWTH_NOTE,
        f"The benchmark creates no tenant unless {reserve_gib:g} GiB of memory remain free.",
        f"Requests a second by kind of cluster and method, {last.tenants} tenants: {requests}.",
    ]
