"""Stopping a platform: none there, nothing of others deleted, nothing deleted under a mount."""

import errno
from pathlib import Path
from types import SimpleNamespace
from typing import NoReturn

import pytest

from tests.fakes.report import Silent
from vkgateway.api.errors import ConflictError, NotFoundError, UnavailableError, VkgatewayError
from vkgateway.planes.supervisor.spec import SupervisorPaths
from vkgateway_platform.embedded import choices, down, startup, status
from vkgateway_platform.embedded.disk import check_free_space, disk_errors
from vkgateway_platform.embedded.lock import work_lock
from vkgateway_platform.embedded.options import UpOptions
from vkgateway_platform.embedded.paths import PlatformPaths


def files(directory: Path) -> list[Path]:
    return sorted(directory.rglob("*"))


async def test_down_without_a_platform_creates_nothing(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="no platform in"):
        await down.down(tmp_path / "none", purge=True, report=Silent())
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("strange", ["run/notes.txt", "platform.json"])
async def test_directories_of_other_programs_are_no_platform(tmp_path: Path, strange: str) -> None:
    for name in (strange, "logs/app.log", "volumes/data", "node/index.js"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text('["not ours"]')
    before = files(tmp_path)
    with pytest.raises(VkgatewayError, match=str(tmp_path)):
        await down.down(tmp_path, purge=True, report=Silent())
    assert files(tmp_path) == before


async def test_platform_with_a_damaged_record_is_removed(tmp_path: Path) -> None:
    paths, supervisor = PlatformPaths(tmp_path / "data"), SupervisorPaths(tmp_path / "data")
    supervisor.run_dir.mkdir(parents=True)
    supervisor.lock_path.touch()
    paths.record_path.write_text("{")
    await down.down(paths.data_dir, purge=True, report=Silent())
    assert not paths.data_dir.exists()


async def test_platform_that_is_starting_is_not_stopped(tmp_path: Path) -> None:
    paths = PlatformPaths(tmp_path)
    paths.record_path.write_text('{"layout": 1}')
    with work_lock(paths.lock_path, command="up"), pytest.raises(ConflictError, match="vkgateway up"):
        await down.down(tmp_path, purge=True, report=Silent())
    assert paths.record_path.exists()


async def test_platform_that_fetches_programs_is_not_stopped(tmp_path: Path) -> None:
    """A first `up` has written only its lock by then, and would continue."""
    paths = PlatformPaths(tmp_path)
    with work_lock(paths.lock_path, command="up"):
        for command in (down.down(tmp_path, purge=True, report=Silent()), status.platform_status(tmp_path)):
            with pytest.raises(ConflictError, match="is in use by vkgateway up"):
                await command
    for command in (down.down(tmp_path, purge=True, report=Silent()), status.platform_status(tmp_path)):
        with pytest.raises(NotFoundError):
            await command


@pytest.mark.parametrize(
    "there",
    [[], ["lock", "lost+found/"], ["conformance/tenants/"], ["run/supervisor.lock", "logs/etcd.log", "etcd/", "lock"]],
)
def test_new_platform_uses_an_empty_directory_or_its_own_leftovers(tmp_path: Path, there: list[str]) -> None:
    lay_out(tmp_path, there)
    startup._check_vacant(PlatformPaths(tmp_path))


@pytest.mark.parametrize(
    ("there", "named"),
    [
        (["logs/app.log"], "logs"),
        (["run/app.pid", "lock"], "run"),
        (["run/supervisor.lock", "diary.txt"], "diary.txt"),
        (["lost+found/", "lost"], "lost"),
    ],
)
def test_new_platform_refuses_a_directory_of_another_program(tmp_path: Path, there: list[str], named: str) -> None:
    lay_out(tmp_path, there)
    with pytest.raises(ConflictError, match=f"contains no platform but other files, such as {named}"):
        startup._check_vacant(PlatformPaths(tmp_path))


def lay_out(folder: Path, there: list[str]) -> None:
    for name in there:
        path = folder / name
        (path if name.endswith("/") else path.parent).mkdir(parents=True, exist_ok=True)
        if not name.endswith("/"):
            path.touch()


def test_purge_deletes_only_the_platforms_files(tmp_path: Path) -> None:
    paths = PlatformPaths(tmp_path)
    paths.etcd_dir.mkdir()
    (paths.etcd_dir / "db").touch()
    paths.record_path.touch()
    (tmp_path / "diary.txt").touch()
    down._remove_data(paths)
    assert [path.name for path in tmp_path.iterdir()] == ["diary.txt"]


def test_purge_deletes_the_directory_if_it_is_empty(tmp_path: Path) -> None:
    paths = PlatformPaths(tmp_path / "data")
    paths.pki_dir.mkdir(parents=True)
    down._remove_data(paths)
    assert not paths.data_dir.exists()


def test_mounts_inside_the_directory_are_found(tmp_path: Path) -> None:
    inside, beside = f"{tmp_path}/data/node/ä\\040b", f"{tmp_path}/database"
    table = tmp_path / "mountinfo"
    table.write_text("".join(f"36 35 0:3 / {point} rw - tmpfs tmpfs rw\n" for point in (inside, beside)))
    assert list(down._mounts_inside(tmp_path / "data", table=table)) == [f"{tmp_path}/data/node/ä b"]


def test_mount_prevents_the_purge(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = PlatformPaths(tmp_path)
    paths.pki_dir.mkdir()
    monkeypatch.setattr(down, "_mounts_inside", lambda _directory: iter(["/data/node/x"]))
    with pytest.raises(VkgatewayError, match="/data/node/x is still mounted, so nothing was deleted"):
        down._remove_data(paths)
    assert paths.pki_dir.exists()


@pytest.mark.parametrize(
    ("number", "sentence"),
    [
        (errno.ENOSPC, "the disk that holds /data/x is full"),
        (errno.EROFS, "the disk that holds /data/x is read-only"),
        (errno.EACCES, "the disk that holds /data/x is not writable for this user"),
    ],
)
def test_disk_error_is_one_sentence(number: int, sentence: str) -> None:
    with pytest.raises(UnavailableError, match=sentence) as caught, disk_errors(Path("/data")):
        raise OSError(number, "refused", "/data/x")
    assert caught.value.hint


def test_lack_of_disk_space_is_detected_first(tmp_path: Path) -> None:
    with pytest.raises(UnavailableError, match=r"has \d+ MB free, and a platform needs \d+ MB"):
        check_free_space(tmp_path, needed=1 << 60)
    check_free_space(tmp_path, needed=1)


async def test_existing_platform_needs_less_disk_space(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class GoesOnError(Exception):
        """There was enough space."""

    def go_on(*_: object) -> NoReturn:
        raise GoesOnError

    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=100 << 20))
    monkeypatch.setattr(choices, "merge_options", go_on)
    with pytest.raises(UnavailableError, match="100 MB free, and a platform needs 300 MB"):
        await startup.up(tmp_path, UpOptions(), report=Silent())
    PlatformPaths(tmp_path).record_path.write_text('{"layout": 1}')
    with pytest.raises(GoesOnError):
        await startup.up(tmp_path, UpOptions(), report=Silent())
    monkeypatch.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=10 << 20))
    with pytest.raises(UnavailableError, match="10 MB free"):
        await startup.up(tmp_path, UpOptions(), report=Silent())


def test_other_errors_of_the_system_pass() -> None:
    with pytest.raises(ConnectionRefusedError), disk_errors(Path("/data")):
        raise ConnectionRefusedError(errno.ECONNREFUSED, "refused")
