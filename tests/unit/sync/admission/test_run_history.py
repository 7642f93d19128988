"""Durations of earlier runs of similar work."""

import time

from vkgateway.scheduler.service.accounting import RunHistory


def test_median_duration_is_known_after_three_runs() -> None:
    runs = RunHistory()
    for number, seconds in enumerate((10.0, 90.0)):
        runs.add_run("lab", f"train-{number}-x7f2k", seconds)
    assert runs.expected_run("lab", "train-2-bbbbb") is None

    runs.add_run("lab", "train-2-bbbbb", 30.0)
    assert runs.expected_run("lab", "train-9-ccccc") == 30.0
    assert runs.expected_run("lab", "test-9-ccccc") is None
    assert runs.expected_run("other", "train-9-ccccc") is None


def test_old_runs_are_dropped() -> None:
    runs = RunHistory()
    for _ in range(3):
        runs.add_run("lab", "train", 1000.0)
    for _ in range(20):
        runs.add_run("lab", "train", 5.0)
    assert runs.expected_run("lab", "train") == 5.0


def test_number_of_remembered_kinds_is_limited() -> None:
    runs = RunHistory()
    for _ in range(3):
        runs.add_run("lab", "first", 1.0)
    for number in range(5000):
        runs.add_run(f"lab{number}", "other", 1.0)
    assert runs.expected_run("lab", "first") is None


def test_long_name_is_parsed_in_bounded_time() -> None:
    name = "a" + "-12345" * 24 + "-zz"
    began = time.thread_time()
    assert RunHistory().expected_run("lab", name) is None
    assert time.thread_time() - began < 1.0
