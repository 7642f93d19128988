"""Whether a compute cluster counts as reachable: watched and answering, both."""

from __future__ import annotations

import pytest

from vkgateway.kube.client import Client
from vkgateway.sync.compute.reachability import Reachability


class Judged:
    """A judgement, and how often it turned."""

    def __init__(self) -> None:
        self.turns: list[bool] = []
        self.it = Reachability("local", Client("http://127.0.0.1:1"), on_change=self._turned)

    def _turned(self) -> None:
        self.turns.append(self.it.reachable)


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_at_first_nothing_is_known(judged: Judged) -> None:
    assert (judged.it.reachable, judged.it.judged) == (False, False)
    assert judged.it.why


def test_a_cluster_that_is_watched_counts_as_answering(judged: Judged) -> None:
    judged.it.watches(True, "")
    assert (judged.it.reachable, judged.it.judged, judged.it.why) == (True, True, "")
    assert judged.turns == [True]


def test_what_it_tells_before_its_pods_are_listed_shows_that_it_answers(judged: Judged) -> None:
    judged.it.answers()
    assert (judged.it.reachable, judged.it.judged, judged.it.why) == (True, True, "")
    judged.it.watches(False, "refused")
    judged.it.answers()  # the watch of pods has the say from then on
    assert (judged.it.reachable, judged.it.why) == (False, "refused")
    assert judged.turns == [True, False]


def test_one_that_cannot_be_watched_is_judged_and_nobody_is_told_what_he_knows(judged: Judged) -> None:
    judged.it.watches(False, "refused")
    assert (judged.it.reachable, judged.it.judged, judged.it.why) == (False, True, "refused")
    assert judged.turns == []


def test_silence_counts_though_the_watch_still_stands(judged: Judged) -> None:
    judged.it.watches(True, "")
    judged.it._beats(False, "timed out")
    assert (judged.it.reachable, judged.it.why) == (False, "timed out")
    judged.it._beats(True, "")
    assert judged.turns == [True, False, True]


def test_of_both_troubles_that_of_the_watch_is_told_and_each_must_pass(judged: Judged) -> None:
    judged.it.watches(True, "")
    judged.it._beats(False, "timed out")
    judged.it.watches(False, "refused")
    assert judged.it.why == "refused"
    judged.it._beats(True, "")
    assert not judged.it.reachable
    judged.it.watches(True, "")
    assert judged.turns == [True, False, True]


def test_after_the_end_nothing_is_trusted(judged: Judged) -> None:
    judged.it.watches(True, "")
    judged.it.end()
    assert (judged.it.reachable, judged.it.judged) == (False, True)
    assert judged.turns == [True]
