"""A platform whose processes end says what the machine lacks."""

from __future__ import annotations

import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from vkgateway_platform.embedded import machine_problems


def test_sound_machine_has_no_problem(tmp_path: Path) -> None:
    assert machine_problems.find(tmp_path, is_down=True) == []


def test_full_disk_is_told_with_the_way_out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=3 << 20))
    (found,) = machine_problems.find(tmp_path, is_down=False)
    assert f"the disk that holds {tmp_path} has 3 MB free" in found
    assert "vkgateway binaries prune" in found


@pytest.mark.parametrize(
    ("state", "words"),
    [({"f_favail": 0}, "no free inodes"), ({"f_flag": os.ST_RDONLY}, "is read-only")],
)
def test_other_states_of_the_disk_are_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, state: dict[str, int], words: str
) -> None:
    disk: dict[str, Any] = {"f_files": 9, "f_favail": 9, "f_flag": 0} | state
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=1 << 40))
    monkeypatch.setattr("os.statvfs", lambda _: SimpleNamespace(**disk))
    (found,) = machine_problems.find(tmp_path, is_down=False)
    assert words in found


def test_directory_of_another_user_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.access", lambda *_: False)
    assert "is not writable" in machine_problems.find(tmp_path, is_down=False)[0]


def test_memory_counts_only_while_a_process_is_down(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("psutil.virtual_memory", lambda: SimpleNamespace(available=50 << 20))
    assert machine_problems.find(tmp_path, is_down=False) == []
    assert "50 MB of memory left" in machine_problems.find(tmp_path, is_down=True)[0]
