"""growth: what mostly idle tenants cost the gateway and the machine, at several numbers of tenants."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from typing import Final

from bench import procfs
from bench.failures import describe_failure
from bench.flows import POOL_LABEL
from bench.growthtable import RestartFigures, SizeFigures, build_outcome
from bench.idlemeter import GATEWAY, find_gateway, measure_cordons, measure_platform
from bench.light import TENANTS as LIGHT_TENANTS
from bench.light import measure_delays
from bench.load import Place
from bench.objectcosts import ObjectCost, measure_nodes, measure_pods
from bench.outcome import Outcome
from bench.platform import POOL
from bench.residents import Residents, open_residents
from bench.restart import restart_gateway
from bench.session import Session
from bench.takeover import measure_takeover
from vkgateway.api.errors import UnavailableError, VkgatewayError

TITLE: Final = "Mostly idle tenants: memory, CPU, requests, restart and delay by number of tenants"
SIZES: Final = (10, 25, 50, 1000)
"""Default sizes. The last does not fit, so the benchmark ends with as many tenants as the memory holds."""
_BATCH: Final = 5
"""Tenants created between two looks at the free memory."""
_TENANT_MIB: Final = 300.0
"""Memory for a tenant that must be free in addition to the reserve: 200 MiB for its processes, and their start."""
_SETTLE: Final = 30.0
_OBJECT_SECONDS: Final = 30.0


async def run(session: Session) -> Outcome:
    """Create tenants up to each size, and measure there. End when the machine's memory holds no more.

    A failure after the first size ends the benchmark, too: the outcome names it.
    """
    sizes: list[SizeFigures] = []
    objects: list[ObjectCost] = []
    problem = ""
    async with open_residents() as residents:
        for wanted in session.settings.sizes or SIZES:
            try:
                is_complete = await _add_tenants(session, residents, wanted)
                sizes.append(await _measure_size(session, residents))
                objects = objects or await _measure_objects(session, sizes[0])
            except (VkgatewayError, BaseExceptionGroup) as error:
                problem = describe_failure(error, tenants=len(session.platform.tenants))
                if not sizes:
                    raise UnavailableError(problem) from error
                session.report.done(problem)
                break
            if not is_complete:
                break
    outcome = build_outcome(sizes, objects, reserve_gib=session.settings.reserve_gib, seconds=session.settings.seconds)
    outcome.notes += [problem] if problem else []
    return outcome


async def _add_tenants(session: Session, residents: Residents, wanted: int) -> bool:
    """Create tenants until there are `wanted`. Return False if free memory ends before that."""
    platform, reserve = session.platform, 1024 * session.settings.reserve_gib
    while (count := len(platform.tenants)) < wanted:
        step = min(_BATCH, wanted - count)
        free = procfs.available_mib()
        if free < reserve + step * _TENANT_MIB:
            words = f"{free / 1024:.1f} GiB of memory are free, and {session.settings.reserve_gib:g} GiB must remain"
            if not count:
                raise UnavailableError(words, hint="Stop other programs, or set a smaller --reserve.")
            session.report.done(f"{count} tenants: {words}")
            return False
        await session.ensure_tenants(count + step)
        await residents.add_tenants(platform.tenant_places(count + step)[count:])
    return True


async def _measure_size(session: Session, residents: Residents) -> SizeFigures:
    platform = session.platform
    places = platform.tenant_places(len(platform.tenants))
    words = f"{len(places)} tenants"
    session.report(f"{words}: idle")
    await asyncio.sleep(_SETTLE)
    idle = await measure_platform(platform, seconds=session.settings.seconds)
    cordons = await measure_cordons(
        await find_gateway(platform), platform.compute, selector=f"{POOL_LABEL}={POOL}", idle=idle
    )
    restart = await _measure_restart(session, places)
    session.report(f"{words}: change of the leader")
    takeover = await measure_takeover(platform, places)
    delays = await measure_delays(session, places[:LIGHT_TENANTS])
    session.report.done(
        f"{words}: gateway {idle.pss[GATEWAY]:.0f} MiB, {idle.cpu[GATEWAY]:.1f} % of a core, ready "
        f"{restart.ready:.1f} s after a restart, {idle.available / 1024:.1f} GiB free"
    )
    return SizeFigures(
        tenants=len(places),
        operators=residents.operators,
        idle=idle,
        cordons=cordons,
        restart=restart,
        takeover=takeover,
        delays=delays,
    )


async def _measure_objects(session: Session, first: SizeFigures) -> list[ObjectCost]:
    """Measure what further nodes and pods cost.

    Pods come last, and the gateway is restarted afterwards: memory of deleted pods is returned late.
    """
    platform, seconds = session.platform, min(_OBJECT_SECONDS, session.settings.seconds)
    session.report("further nodes")
    await asyncio.sleep(_SETTLE)
    before = await measure_platform(platform, seconds=seconds)
    nodes = await measure_nodes(platform, before=before, seconds=seconds)
    session.report("further pods")
    await asyncio.sleep(_SETTLE)
    # Deleted nodes cost CPU for a while. Their memory is reused, so it is compared with that before the nodes.
    before = replace(before, cpu=(await measure_platform(platform, seconds=seconds)).cpu)
    pods = await measure_pods(platform, platform.tenant_places(first.tenants), before=before, seconds=seconds)
    await platform.kill_gateway()
    await platform.start_gateway()
    await platform.wait_gateway_ready()
    for cost in (pods, nodes):
        session.report.done(cost.describe())
    return [pods, nodes]


async def _measure_restart(session: Session, places: list[Place]) -> RestartFigures:
    """Kill and restart the gateway, with three changes in each tenant while it is down."""
    restart = await restart_gateway(session, places, pods=3 * len(places), changed=len(places))
    return RestartFigures(
        ready=restart.ready - restart.started,
        first=restart.first_repair_seconds(),
        last=restart.last_repair_seconds(),
    )
