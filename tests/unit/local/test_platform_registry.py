"""Platforms on one machine choose different ports and addresses."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from tests.support.machine import patience
from vkgateway_platform.embedded import choices, platform_registry, record
from vkgateway_platform.embedded.choices import MachineState
from vkgateway_platform.embedded.options import PORTS, UpOptions
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord


def settle(folder: Path, data_dir: Path, *, address: str = "192.0.2.7") -> PlatformRecord:
    """Choose ports on a machine where no server listens yet, as `up` does first."""
    with platform_registry.other_sockets(folder, data_dir) as others:
        surroundings = MachineState(own_interface=False, primary_address=address, other_sockets=others)
        placed = choices.assign_address(PlatformRecord(), surroundings=surroundings)
        chosen = choices.choose_ports(placed, UpOptions(), surroundings=surroundings, free=lambda _address, _port: True)
        data_dir.mkdir(parents=True, exist_ok=True)
        record.save_record(PlatformPaths(data_dir).record_path, chosen)
    return chosen


def settle_as_root(folder: Path, data_dir: Path) -> PlatformRecord:
    """Choose ports as root on a machine where no platform runs."""
    with platform_registry.other_sockets(folder, data_dir) as others:
        placed = choices.assign_address(PlatformRecord(), surroundings=MachineState(other_sockets=others))
        data_dir.mkdir(parents=True)
        record.save_record(PlatformPaths(data_dir).record_path, replace(placed, ports=dict(PORTS)))
    return placed


def test_new_platforms_choose_different_ports(tmp_path: Path) -> None:
    first, second = (settle(tmp_path / "known", tmp_path / name) for name in ("a", "b"))
    assert first.ports == dict(PORTS)
    assert not choices.listen_sockets(first) & choices.listen_sockets(second)


def test_the_same_port_at_another_address_is_no_conflict(tmp_path: Path) -> None:
    settle(tmp_path / "known", tmp_path / "a", address="10.213.0.1")
    second = settle(tmp_path / "known", tmp_path / "b", address="10.213.1.1")
    assert second.ports["compute-api"] == PORTS["compute-api"]
    assert second.ports["etcd"] != PORTS["etcd"]  # both are on loopback


def test_number_of_a_stopped_platform_is_not_reused(tmp_path: Path) -> None:
    """Its interface was removed, and a restart creates it again while the other platform runs."""
    known = tmp_path / "known"
    down, new = (settle_as_root(known, tmp_path / name) for name in ("a", "b"))
    assert (down.interface, new.interface) == ("vkg0", "vkg1")
    shutil.rmtree(tmp_path / "a")
    assert settle_as_root(known, tmp_path / "c").number == down.number


def test_ports_of_a_removed_platform_are_free(tmp_path: Path) -> None:
    settle(tmp_path / "known", tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    assert settle(tmp_path / "known", tmp_path / "b").ports == dict(PORTS)


def test_damaged_registry_or_record_is_ignored(tmp_path: Path) -> None:
    known = tmp_path / "known"
    settle(known, tmp_path / "a")
    PlatformPaths(tmp_path / "a").record_path.write_text("{")
    assert settle(known, tmp_path / "b").ports == dict(PORTS)
    (known / "platforms.json").write_text("nothing")
    assert settle(known, tmp_path / "c").ports == dict(PORTS)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_cache_without_write_permission_is_ignored(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, "refused", str(tmp_path / "known"))

    monkeypatch.setattr("os.open", refuse)
    with platform_registry.other_sockets(tmp_path / "known", tmp_path / "a") as found:
        assert found == frozenset()


def test_concurrent_choice_waits(tmp_path: Path) -> None:
    known, found = tmp_path / "known", list[PlatformRecord]()
    other = threading.Thread(target=lambda: found.append(settle(known, tmp_path / "b")))
    with platform_registry.other_sockets(known, tmp_path / "a"):
        other.start()
        other.join(timeout=0.2)
        assert not found
        (tmp_path / "a").mkdir()
        first = PlatformRecord(address="192.0.2.7", ports=dict(PORTS))
        record.save_record(PlatformPaths(tmp_path / "a").record_path, first)
    other.join(patience(10))
    assert not choices.listen_sockets(found[0]) & choices.listen_sockets(first)
