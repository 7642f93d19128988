"""Tests of logging: no local variables in tracebacks, no failure by logging."""

from __future__ import annotations

import contextlib
import errno
import io
from collections.abc import Iterator

import pytest
import structlog

from vkgateway.serve import logs
from vkgateway.settings.config import Logging


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    before = structlog.get_config()
    yield
    structlog.configure(**before)


@pytest.mark.parametrize("form", ["text", "json"])
def test_tracebacks_show_no_local_variables(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
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
def test_failing_log_stops_nothing(form: str, monkeypatch: pytest.MonkeyPatch) -> None:
    with open("/dev/full", "w") as full:
        monkeypatch.setattr("sys.stderr", full)
        logs.configure_logging(Logging(format=form))  # type: ignore[arg-type]
        for number in range(1000):
            structlog.get_logger().warning("a line", number=number)
        monkeypatch.undo()
        with contextlib.suppress(OSError):
            full.close()


def test_log_recovers_after_full_disk() -> None:
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


def test_closed_stream_stops_nothing() -> None:
    written = io.StringIO()
    stream = logs.LossyStream(written)
    written.close()
    print("lost", file=stream, flush=True)
