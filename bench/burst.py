"""burst: many pods at once over all tenants, beside the same pods without a gateway and beside the floor."""

from __future__ import annotations

from typing import Final

from bench.outcome import Cell, Outcome, Target
from bench.session import Session, System

TITLE: Final = "Pods at once, from the request that creates a pod to the watch event that shows it Ready"
COLUMNS: Final = [
    "pods", "token", "system", "Ready p50, s", "Ready p99, s", "pods/s", "of the floor", "gone, pods/s",
]  # fmt: skip
_SYSTEMS: Final[tuple[System, ...]] = ("floor", "direct", "gateway")
_THROUGHPUT: Final = 0.8


async def run(session: Session) -> Outcome:
    """Run every size, with and without token, through all three systems."""
    await session.tenants()
    cases = [(pods, token) for pods in session.settings.sizes(1250, 2500) for token in (False, True)]
    async with session.without_gateway():
        for system in ("floor", "direct"):
            for pods, token in cases:
                await session.flow(system, pods=pods, token=token)
    for pods, token in cases:
        await session.flow("gateway", pods=pods, token=token)
    return await _tell(session, cases)


async def _tell(session: Session, cases: list[tuple[int, bool]]) -> Outcome:
    rows: list[list[Cell]] = []
    targets: list[Target] = []
    for pods, token in cases:
        limit = (await session.flow("floor", pods=pods, token=token)).throughput
        for system in _SYSTEMS:
            flow = await session.flow(system, pods=pods, token=token)
            share = flow.throughput / limit
            rows.append(
                [
                    pods,
                    "yes" if token else "no",
                    system,
                    round(flow.ready_p50, 2),
                    round(flow.ready_p99, 2),
                    round(flow.throughput, 1),
                    round(share, 2),
                    round(pods / flow.gone_span, 1),
                ]
            )
            if system == "gateway":
                what = f"throughput of {pods} pods {'with' if token else 'without'} token, share of the floor's"
                targets.append(Target(what=what, seen=round(share, 2), limit=_THROUGHPUT, at_least=True))
    return Outcome(columns=COLUMNS, rows=rows, targets=targets, notes=NOTES)


NOTES: Final = [
    "gateway: tenants' schedulers bind above, the compute cluster's scheduler below, KWOK makes pods Ready.",
    "direct: the same pods straight into as many namespaces of the compute cluster, no gateway running.",
    "floor: bare asyncio clients that do nothing but the unavoidable writes (create and bind above, create below "
    "already bound, status below, status above; with a token the request above and a Secret below), without a watch, "
    "a scheduler or KWOK in the way, no gateway running.",
    "gone: from the first delete to the last pod gone from the tenant.",
]
