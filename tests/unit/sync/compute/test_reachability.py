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
        self.turns.append(self.it.is_reachable)


@pytest.fixture
def judged() -> Judged:
    return Judged()


def test_at_first_nothing_is_known(judged: Judged) -> None:
    assert (judged.it.is_reachable, judged.it.is_judged) == (False, False)
    assert judged.it.reason


def test_a_cluster_that_is_watched_counts_as_answering(judged: Judged) -> None:
    judged.it.set_watching(True, "")
    assert (judged.it.is_reachable, judged.it.is_judged, judged.it.reason) == (True, True, "")
    assert judged.turns == [True]


def test_what_it_tells_before_its_pods_are_listed_shows_that_it_answers(judged: Judged) -> None:
    judged.it.mark_answered()
    assert (judged.it.is_reachable, judged.it.is_judged, judged.it.reason) == (True, True, "")
    judged.it.set_watching(False, "refused")
    judged.it.mark_answered()  # the watch of pods has the say from then on
    assert (judged.it.is_reachable, judged.it.reason) == (False, "refused")
    assert judged.turns == [True, False]


def test_one_that_cannot_be_watched_is_judged_and_nobody_is_told_what_he_knows(judged: Judged) -> None:
    judged.it.set_watching(False, "refused")
    assert (judged.it.is_reachable, judged.it.is_judged, judged.it.reason) == (False, True, "refused")
    assert judged.turns == []


def test_silence_counts_though_the_watch_still_stands(judged: Judged) -> None:
    judged.it.set_watching(True, "")
    judged.it._heartbeat_changed(False, "timed out")
    assert (judged.it.is_reachable, judged.it.reason) == (False, "timed out")
    judged.it._heartbeat_changed(True, "")
    assert judged.turns == [True, False, True]


def test_of_both_troubles_that_of_the_watch_is_told_and_each_must_pass(judged: Judged) -> None:
    judged.it.set_watching(True, "")
    judged.it._heartbeat_changed(False, "timed out")
    judged.it.set_watching(False, "refused")
    assert judged.it.reason == "refused"
    judged.it._heartbeat_changed(True, "")
    assert not judged.it.is_reachable
    judged.it.set_watching(True, "")
    assert judged.turns == [True, False, True]


def test_after_the_end_nothing_is_trusted(judged: Judged) -> None:
    judged.it.set_watching(True, "")
    judged.it.mark_closed()
    assert (judged.it.is_reachable, judged.it.is_judged) == (False, True)
    assert judged.turns == [True]
