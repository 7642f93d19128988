"""Log files of processes: list, last lines, new lines."""

import asyncio
from io import BytesIO
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.machine import patience
from vkgateway.api.errors import NotFoundError
from vkgateway.planes.supervisor import logs as files
from vkgateway_platform.embedded import logs


def test_components_are_named_as_their_processes(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    for name in ("etcd.log", "compute.apiserver.log", "etcd.log.1"):
        (tmp_path / "logs" / name).touch()
    assert logs.list_components(tmp_path) == ["compute/apiserver", "etcd"]
    assert logs.log_file(tmp_path, "compute/apiserver") == tmp_path / "logs" / "compute.apiserver.log"


def test_unknown_component_lists_the_available_logs(tmp_path: Path) -> None:
    (tmp_path / "logs").mkdir()
    (tmp_path / "logs" / "etcd.log").touch()
    with pytest.raises(NotFoundError, match="'ectd' has no log") as caught:
        logs.log_file(tmp_path, "ectd")
    assert caught.value.hint == "Available logs: etcd."


def test_component_name_is_not_a_path(tmp_path: Path) -> None:
    (tmp_path / "secret.log").touch()
    with pytest.raises(NotFoundError):
        logs.log_file(tmp_path, "../secret")


@given(lines=st.lists(st.binary(max_size=200).filter(lambda line: b"\n" not in line)), count=st.integers(0, 20))
def test_the_last_lines_are_those_of_the_whole_file(lines: list[bytes], count: int) -> None:
    ended = [line + b"\n" for line in lines]
    file = BytesIO(b"".join(ended))
    assert files.last_lines(file, count) == b"".join(ended[max(0, len(ended) - count) :])
    assert file.tell() == sum(map(len, ended))


def test_incomplete_last_line_counts() -> None:
    assert files.last_lines(BytesIO(b"one\ntwo\nthr"), 2) == b"two\nthr"


def test_long_file_is_read_backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_BLOCK", 7)
    assert files.last_lines(BytesIO(b"".join(b"line %d\n" % n for n in range(100))), 2) == b"line 98\nline 99\n"


async def test_follow_continues_after_truncation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(logs, "_POLL", 0)
    path = tmp_path / "etcd.log"
    path.write_bytes(b"old and long\n")
    with path.open("rb") as file:
        files.last_lines(file, 1)
        added = logs.follow_file(file)
        path.write_bytes(b"new\n")
        assert await asyncio.wait_for(anext(added), patience(5)) == b"new\n"
        with path.open("ab") as more:
            more.write(b"more\n")
        assert await asyncio.wait_for(anext(added), patience(5)) == b"more\n"
        await added.aclose()  # type: ignore[attr-defined]
