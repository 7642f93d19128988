"""How long work like this ran before."""

import time

from vkgateway.sync.admission.history import RunTimes


def test_work_of_a_kind_is_known_after_three_runs_by_the_middle_of_them() -> None:
    runs = RunTimes()
    for number, seconds in enumerate((10.0, 90.0)):
        runs.ran("lab", f"train-{number}-x7f2k", seconds)
    assert runs.expect("lab", "train-2-bbbbb") is None

    runs.ran("lab", "train-2-bbbbb", 30.0)
    assert runs.expect("lab", "train-9-ccccc") == 30.0
    assert runs.expect("lab", "test-9-ccccc") is None
    assert runs.expect("other", "train-9-ccccc") is None


def test_old_runs_are_forgotten() -> None:
    runs = RunTimes()
    for _ in range(3):
        runs.ran("lab", "train", 1000.0)
    for _ in range(20):
        runs.ran("lab", "train", 5.0)
    assert runs.expect("lab", "train") == 5.0


def test_no_more_kinds_are_remembered_than_there_is_room_for() -> None:
    runs = RunTimes()
    for _ in range(3):
        runs.ran("lab", "first", 1.0)
    for number in range(5000):
        runs.ran(f"lab{number}", "other", 1.0)
    assert runs.expect("lab", "first") is None


def test_a_name_cannot_be_made_that_takes_long_to_read() -> None:
    name = "a" + "-12345" * 24 + "-zz"
    began = time.thread_time()
    assert RunTimes().expect("lab", name) is None
    assert time.thread_time() - began < 1.0
