"""Tests of the lock of the data directory, and of the gateway's identity."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from vkgateway.api.errors import ConflictError
from vkgateway.serve import instance_lock
from vkgateway_platform.embedded.paths import PlatformPaths


def test_second_gateway_cannot_lock_data_directory(tmp_path: Path) -> None:
    with (
        instance_lock.lock_data_dir(tmp_path),
        pytest.raises(ConflictError, match=f"another gateway uses the data directory {tmp_path}"),
        instance_lock.lock_data_dir(tmp_path),
    ):
        pass


def test_identity_is_unique_and_survives_restart(tmp_path: Path) -> None:
    names = []
    for folder in ("a", "a", "b"):
        with instance_lock.lock_data_dir(tmp_path / folder) as name:
            names.append(name)
    assert names[0] == names[1] != names[2]


def test_lock_file_belongs_to_platform_paths(tmp_path: Path) -> None:
    assert PlatformPaths(tmp_path).gateway.lock_file.name == instance_lock.LOCK_FILE
    assert PlatformPaths(tmp_path).gateway.lock_file in PlatformPaths(tmp_path).list_all()


def test_gateway_serves_despite_full_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(os, "pwrite", full)
        with instance_lock.lock_data_dir(tmp_path) as name:
            assert name
    with monkeypatch.context() as patch:
        patch.setattr(os, "open", full)
        with instance_lock.lock_data_dir(tmp_path) as name:
            assert name


def test_identity_without_lock_is_unique(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems have no locks, so that two gateways may use the same data directory."""

    def flock(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", flock)
    with instance_lock.lock_data_dir(tmp_path) as name:
        pass
    with instance_lock.lock_data_dir(tmp_path) as again:
        assert name != again
