"""Who may be called in, as it is kept: up to date when asked, and nothing of those that have gone."""

from __future__ import annotations

from tests.unit.arbiter.lent import GPU, KEY, running
from vkgateway.arbiter.calling import Calling
from vkgateway.arbiter.facts import Gang, Pool

POOL = Pool(key=KEY, nodes=(), governed=(GPU,))


def test_a_gang_that_has_gone_may_not_be_called_in_any_more() -> None:
    calling = Calling(POOL)
    gangs = {"g": running("g", ["a"]), "h": running("h", ["a"])}
    for name in gangs:
        calling.changed(name)
    assert sorted(calling.evictable(gangs, set()).gangs()) == ["g", "h"]

    del gangs["g"]
    calling.gone("g")

    assert list(calling.evictable(gangs, set()).gangs()) == ["h"]


def test_nothing_is_kept_of_gangs_that_came_and_went_unasked() -> None:
    calling, none = Calling(POOL), dict[str, Gang]()
    for number in range(1000):
        calling.changed(f"g{number}")
        calling.gone(f"g{number}")
    assert not calling.remembered
    assert list(calling.evictable(none, set()).gangs()) == []
