"""Logs of a leader: lines are held while it cannot prove that it leads, and standard output."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.clock import FakeClock
from vkgateway.kube.write_gate import WriteGate
from vkgateway.runtime.jsonlines import open_log

MAX_BYTES = 1024 * 1024


def test_lines_of_paused_leader_are_written_in_order_when_it_continues(tmp_path: Path) -> None:
    clock, path = FakeClock(1000.0), tmp_path / "log"
    gate = WriteGate(clock.monotonic)
    gate.extend(1004.0)
    log = open_log(str(path), name="usage", max_bytes=MAX_BYTES, permit=gate.logs)
    assert log.append(b"1")
    clock.seconds = 1004.0
    assert log.append(b"2", b"3")
    assert path.read_bytes() == b"1\n"
    assert not log.flush()
    gate.extend(1010.0)
    assert log.append(b"4")
    assert path.read_bytes() == b"1\n2\n3\n4\n"


def test_replaced_leader_adds_nothing_to_shared_file(tmp_path: Path) -> None:
    clock, path = FakeClock(1000.0), tmp_path / "log"
    old_gate, new_gate = WriteGate(clock.monotonic), WriteGate(clock.monotonic)
    old = open_log(str(path), name="usage", max_bytes=MAX_BYTES, permit=old_gate.logs)
    new = open_log(str(path), name="usage", max_bytes=MAX_BYTES, permit=new_gate.logs)
    old_gate.extend(1004.0)
    old.append(b"1")
    clock.seconds = 1060.0
    new_gate.extend(1064.0)
    new.append(b"2")
    old.append(b"3")
    assert path.read_bytes() == b"1\n2\n"


def test_stopping_leader_logs_what_it_did(tmp_path: Path) -> None:
    path = tmp_path / "log"
    gate = WriteGate(lambda: 0.0)
    gate.extend(4.0)
    log = open_log(str(path), name="usage", max_bytes=MAX_BYTES, permit=gate.logs)
    gate.close_writes()
    log.append(b"1")
    gate.close()
    log.append(b"2")
    assert path.read_bytes() == b"1\n"


def test_standard_output_names_log_in_each_line(capfdbinary: pytest.CaptureFixture[bytes]) -> None:
    log = open_log("-", name="usage", max_bytes=MAX_BYTES)
    assert log.append(b'{"a":1}', b'{"a":2}')
    assert capfdbinary.readouterr().out == b'{"log":"usage","a":1}\n{"log":"usage","a":2}\n'
