"""Running work that borrows and has a place in its tenant's unused cells: it counts as inside them from then on."""

from __future__ import annotations

from collections.abc import Iterator

from vkgateway.arbiter.facts import PLACED, Gang
from vkgateway.arbiter.lots import core_of
from vkgateway.arbiter.standing import Standing


def promotable(standing: Standing) -> list[Gang]:
    """Gangs of the guaranteed band of which something runs and borrows, where their tenant's cells have room."""
    return [gang for gang in standing.borrowing() if standing.within.has_room(gang.tenant, gang)]


def promote(standing: Standing, gang: Gang) -> None:
    """What of it runs is inside from now on, where unused cells hold it as it stands.

    First its core, all of it or none; then its other pods one by one.
    """
    if not standing.within.has_room(gang.tenant, gang):
        return
    placed = [pod for pod in gang.pods if standing.has(pod) and pod.state is PLACED]
    core = core_of(gang, placed)
    chosen = {pod.uid for pod in core}
    missing = [pod for pod in core if not standing.is_inside(pod.uid)]
    if missing and not standing.move_in(gang, [(pod, pod.node) for pod in missing]):
        return
    for pod in sorted(placed, key=lambda pod: (pod.rank, pod.uid)):
        if pod.uid not in chosen and not standing.is_inside(pod.uid):
            standing.move_in(gang, [(pod, pod.node)])


def promoted(standing: Standing) -> Iterator[Gang]:
    """Gangs of which running pods may have been promoted in this cycle, by their names."""
    for name in sorted(standing.within.moved):
        if name in standing.gangs:
            yield standing.gangs[name]
