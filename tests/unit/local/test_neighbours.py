"""Platforms side by side: what one has chosen, no other chooses."""

from __future__ import annotations

import errno
import shutil
import threading
from pathlib import Path

import pytest
from msgspec.structs import replace

from vkgateway.local import choices, platform_registry, record
from vkgateway.local.choices import MachineState
from vkgateway.local.options import PORTS, UpOptions
from vkgateway.local.paths import PlatformPaths
from vkgateway.local.record import PlatformRecord


def settle(folder: Path, data_dir: Path, *, address: str = "192.0.2.7") -> PlatformRecord:
    """Choose ports on a machine where nobody listens yet, as `up` does before it starts anything."""
    with platform_registry.other_sockets(folder, data_dir) as others:
        surroundings = MachineState(own_interface=False, primary_address=address, other_sockets=others)
        placed = choices.assign_address(PlatformRecord(), surroundings=surroundings)
        chosen = choices.choose_ports(placed, UpOptions(), surroundings=surroundings, free=lambda _address, _port: True)
        data_dir.mkdir(parents=True, exist_ok=True)
        record.save_record(PlatformPaths(data_dir).record_path, chosen)
    return chosen


def settle_as_root(folder: Path, data_dir: Path) -> PlatformRecord:
    """Do so on a machine where no platform runs, and each may have an interface."""
    with platform_registry.other_sockets(folder, data_dir) as others:
        placed = choices.assign_address(PlatformRecord(), surroundings=MachineState(other_sockets=others))
        data_dir.mkdir(parents=True)
        record.save_record(PlatformPaths(data_dir).record_path, replace(placed, ports=dict(PORTS)))
    return placed


def test_two_that_do_not_run_yet_choose_different_ports(tmp_path: Path) -> None:
    first, second = (settle(tmp_path / "known", tmp_path / name) for name in ("a", "b"))
    assert first.ports == dict(PORTS)
    assert not choices.listen_sockets(first) & choices.listen_sockets(second)


def test_the_same_port_at_another_address_is_no_conflict(tmp_path: Path) -> None:
    settle(tmp_path / "known", tmp_path / "a", address="10.213.0.1")
    second = settle(tmp_path / "known", tmp_path / "b", address="10.213.1.1")
    assert second.ports["compute-api"] == PORTS["compute-api"]
    assert second.ports["etcd"] != PORTS["etcd"]  # both have it on loopback


def test_the_number_of_a_platform_that_is_down_is_not_given_to_another(tmp_path: Path) -> None:
    """Its interface is gone, and it wants to come back with the same one, while the other runs."""
    known = tmp_path / "known"
    down, new = (settle_as_root(known, tmp_path / name) for name in ("a", "b"))
    assert (down.interface, new.interface) == ("vkg0", "vkg1")
    shutil.rmtree(tmp_path / "a")
    assert settle_as_root(known, tmp_path / "c").number == down.number


def test_what_a_removed_platform_had_is_free_again(tmp_path: Path) -> None:
    settle(tmp_path / "known", tmp_path / "a")
    shutil.rmtree(tmp_path / "a")
    assert settle(tmp_path / "known", tmp_path / "b").ports == dict(PORTS)


def test_a_damaged_list_or_record_stops_nobody(tmp_path: Path) -> None:
    known = tmp_path / "known"
    settle(known, tmp_path / "a")
    PlatformPaths(tmp_path / "a").record_path.write_text("{")
    assert settle(known, tmp_path / "b").ports == dict(PORTS)
    (known / "platforms.json").write_text("nothing")
    assert settle(known, tmp_path / "c").ports == dict(PORTS)


@pytest.mark.parametrize("number", [errno.EACCES, errno.EROFS])
def test_a_cache_that_may_not_be_written_stops_nobody(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(*_: object, **__: object) -> int:
        raise OSError(number, "refused", str(tmp_path / "known"))

    monkeypatch.setattr("os.open", refuse)
    with platform_registry.other_sockets(tmp_path / "known", tmp_path / "a") as found:
        assert found == frozenset()


def test_whoever_chooses_at_the_same_moment_waits(tmp_path: Path) -> None:
    known, found = tmp_path / "known", list[PlatformRecord]()
    other = threading.Thread(target=lambda: found.append(settle(known, tmp_path / "b")))
    with platform_registry.other_sockets(known, tmp_path / "a"):
        other.start()
        other.join(timeout=0.2)
        assert not found
        (tmp_path / "a").mkdir()
        record.save_record(
            PlatformPaths(tmp_path / "a").record_path, PlatformRecord(address="192.0.2.7", ports=dict(PORTS))
        )
    other.join(timeout=10)
    assert not choices.listen_sockets(found[0]) & {("192.0.2.7", port) for port in PORTS.values()}
