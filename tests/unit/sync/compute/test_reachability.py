"""Reachability of a compute cluster: it must be watched and answer."""

from __future__ import annotations

import pytest

from vkgateway.clusters.cluster_watches import REACHABILITY, ClusterWatches
from vkgateway.clusters.reachability import Reachability
from vkgateway.kube.client import Client


class Harness:
    """Reachability with a count of its changes."""

    def __init__(self) -> None:
        self.turns: list[bool] = []
        watches = ClusterWatches()
        watches.add(REACHABILITY, self._record_change)
        self.it = Reachability("local", Client("http://127.0.0.1:1"), watches)

    def _record_change(self) -> None:
        self.turns.append(self.it.is_reachable)


@pytest.fixture
def harness() -> Harness:
    return Harness()


def test_initial_state_is_unknown(harness: Harness) -> None:
    assert (harness.it.is_reachable, harness.it.is_judged) == (False, False)
    assert harness.it.reason


def test_watched_cluster_counts_as_answering(harness: Harness) -> None:
    harness.it.set_watching(True, "")
    assert (harness.it.is_reachable, harness.it.is_judged, harness.it.reason) == (True, True, "")
    assert harness.turns == [True]


def test_list_before_the_pod_list_proves_reachability(harness: Harness) -> None:
    harness.it.mark_answered()
    assert (harness.it.is_reachable, harness.it.is_judged, harness.it.reason) == (True, True, "")
    harness.it.set_watching(False, "refused")
    harness.it.mark_answered()  # from now on the pod watch decides
    assert (harness.it.is_reachable, harness.it.reason) == (False, "refused")
    assert harness.turns == [True, False]


def test_unwatchable_cluster_is_judged_without_notification(harness: Harness) -> None:
    harness.it.set_watching(False, "refused")
    assert (harness.it.is_reachable, harness.it.is_judged, harness.it.reason) == (False, True, "refused")
    assert harness.turns == []


def test_silence_counts_despite_an_open_watch(harness: Harness) -> None:
    harness.it.set_watching(True, "")
    harness.it.set_answering(False, "timed out")
    assert (harness.it.is_reachable, harness.it.reason) == (False, "timed out")
    harness.it.set_answering(True, "")
    assert harness.turns == [True, False, True]


def test_watch_failure_is_reported_first_and_both_must_recover(harness: Harness) -> None:
    harness.it.set_watching(True, "")
    harness.it.set_answering(False, "timed out")
    harness.it.set_watching(False, "refused")
    assert harness.it.reason == "refused"
    harness.it.set_answering(True, "")
    assert not harness.it.is_reachable
    harness.it.set_watching(True, "")
    assert harness.turns == [True, False, True]


def test_closed_cluster_is_not_trusted(harness: Harness) -> None:
    harness.it.set_watching(True, "")
    harness.it.mark_closed()
    assert (harness.it.is_reachable, harness.it.is_judged) == (False, True)
    assert harness.turns == [True]
