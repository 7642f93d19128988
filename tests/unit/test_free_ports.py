"""Ports that tests choose for programs."""

from __future__ import annotations

import random
import socket
from pathlib import Path

import pytest

from tests.support import ports


def test_chosen_port_is_none_that_the_kernel_gives_to_connections(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    file = tmp_path / "range"
    file.write_text("30000\t60999\n")
    monkeypatch.setattr(ports, "_RANGE", file)
    assert all(1024 <= ports.free_port() < 30000 for _ in range(20))


def test_port_in_use_is_not_chosen(monkeypatch: pytest.MonkeyPatch) -> None:
    with socket.create_server(("127.0.0.1", ports.free_port())) as server:
        taken = server.getsockname()[1]
        offered = iter([taken, taken, taken - 1])
        monkeypatch.setattr(random, "randrange", lambda *_: next(offered))
        assert ports.free_port() != taken
