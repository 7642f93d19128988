"""Only one command at a time works on a platform."""

from pathlib import Path

import pytest

from vkgateway.api.errors import ConflictError
from vkgateway_platform.embedded.lock import work_lock


def test_second_command_is_refused_with_the_name_of_the_first(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with (
        work_lock(lock, command="up"),
        pytest.raises(ConflictError, match=r"in use by vkgateway up \(pid \d+\)"),
        work_lock(lock, command="down"),
    ):
        pytest.fail("both got in")


def test_lock_is_released_when_the_command_fails(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    with pytest.raises(RuntimeError, match="broke"), work_lock(lock, command="up"):
        raise RuntimeError("broke")
    with work_lock(lock, command="down"):
        assert "vkgateway down" in lock.read_text()
    assert lock.read_text() == ""


def test_the_folder_is_made_private(tmp_path: Path) -> None:
    with work_lock(tmp_path / "new" / "lock", command="up"):
        assert (tmp_path / "new").stat().st_mode & 0o777 == 0o700
