"""Tests of the timeline: ends of pods, and who reads them."""

from __future__ import annotations

from vkgateway.page.timeline import MOST_ENTRIES, MOST_OWN_ENTRIES, Timeline, TimelineEntry, end_of_pod

GANG = "a/ns/Job/train"
POOL = ("local", "a100")


def end(gang: str = GANG, *, now: float, since: float = 10.0, pod: str = "p") -> TimelineEntry:
    return end_of_pod(gang=gang, pod=pod, pool=POOL, units=2.0, borrowed=False, since=since, now=now)


def made(*ends: TimelineEntry, uid: str = "1") -> Timeline:
    timeline = Timeline()
    for each in ends:
        timeline.add_end(each, uid_of=lambda _name: uid)
    return timeline


def test_pods_of_a_gang_that_end_together_are_one_entry() -> None:
    timeline = made(end(now=100.0, since=20.0), end(now=130.0), end("a/ns/Job/other", now=131.0), end(now=300.0))
    found = [
        (entry.name, entry.time, entry.since, entry.pods, entry.units) for entry in timeline.all_entries().values()
    ]
    assert found == [
        ("train", 130.0, 10.0, 2, 4.0),
        ("other", 131.0, 10.0, 1, 2.0),
        ("train", 300.0, 10.0, 1, 2.0),
    ]
    assert timeline.tenant_entries("a", "1") == timeline.all_entries()
    assert timeline.namespace_entries("a", "1", ["elsewhere"]) == {}


def test_a_single_pod_has_its_own_name() -> None:
    (entry,) = made(end("a/ns/pod/0b2f", pod="web-0", now=100.0)).all_entries().values()
    assert (entry.tenant, entry.namespace, entry.name, entry.pool) == ("a", "ns", "web-0", "a100.local")


def test_a_tenant_of_the_same_name_reads_nothing_of_its_predecessor() -> None:
    timeline = made(end(now=100.0))
    timeline.add_end(end(now=500.0), uid_of=lambda _name: "2")
    assert timeline.tenant_entries("a", "1") == {}
    assert [entry.time for entry in timeline.tenant_entries("a", "2").values()] == [500.0]


def test_the_number_of_entries_is_bounded() -> None:
    timeline = made(*(end(f"a/ns/Job/{number}", now=float(number)) for number in range(3 * MOST_ENTRIES)))
    assert [len(timeline.all_entries()), len(timeline.tenant_entries("a", "1"))] == [MOST_ENTRIES, MOST_OWN_ENTRIES]
    assert next(reversed(timeline.all_entries().values())).name == str(3 * MOST_ENTRIES - 1)
