"""How the daemon logs: whatever fails, its line holds no values that were being worked on."""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Iterator

import pytest
import structlog

from vkgateway.gateway import logs
from vkgateway.gateway.config import Logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_traceback_shows_no_local_variables(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    written = io.StringIO()
    monkeypatch.setattr("sys.stderr", written)
    logs.configure_logging(Logging(format=form))  # type: ignore[arg-type]

    password = "hunter" + "2"
    try:
        raise ValueError(f"a defect near {len(password)} bytes")
    except ValueError:
        structlog.get_logger().exception("defect")

    assert "a defect near 7 bytes" in written.getvalue()
    assert "Traceback" in written.getvalue()
    assert password not in written.getvalue()


@pytest.mark.parametrize("form", ["text", "json"])
def test_a_log_that_cannot_be_written_stops_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        logs.configure_logging(Logging(format=form))  # type: ignore[arg-type]
        for number in range(1000):
            structlog.get_logger().warning("a line", number=number)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_lines_are_written_again_once_there_is_room() -> None:
    class Disk(io.StringIO):
        full = True

        def write(self, text: str, /) -> int:
            if self.full:
                raise OSError(errno.ENOSPC, "No space left on device")
            return super().write(text)

    disk = Disk()
    stream = logs.LossyStream(disk)
    print("lost", file=stream, flush=True)
    disk.full = False
    print("kept", file=stream, flush=True)
    assert disk.getvalue() == "kept\n"
