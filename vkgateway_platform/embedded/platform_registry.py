"""Registry of the platforms on this machine, so that no two choose the same addresses and ports."""

from __future__ import annotations

import contextlib
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.planes.atomic_files import write_file
from vkgateway_platform.binaries.errors import REFUSALS
from vkgateway_platform.embedded import choices
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.paths import PlatformPaths

_FILE: Final = "platforms.json"
_LOCK: Final = "platforms.lock"
_decode = msgspec.json.Decoder(list[str]).decode


@contextlib.contextmanager
def other_sockets(folder: Path, data_dir: Path) -> Iterator[frozenset[choices.ListenSocket]]:
    """Yield the addresses and ports of this user's other platforms; until the block ends, none of them can choose new
    ones.

    `folder` has the registry. The platform in `data_dir` is registered from then on, until its record is deleted. If
    this user may not write there, a platform knows no others, but still detects ports in use.
    """
    data_dir = data_dir.resolve()
    descriptor = _open_lock(folder)
    if descriptor is None:
        yield frozenset()
        return
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        known = {
            place
            for place in _read_platforms(folder / _FILE)
            if place != data_dir and PlatformPaths(place).record_path.exists()
        }
        yield frozenset(socket for place in known for socket in _platform_sockets(place))
        write_file(folder / _FILE, msgspec.json.encode(sorted(str(place) for place in {*known, data_dir})))
    finally:
        os.close(descriptor)


def _open_lock(folder: Path) -> int | None:
    """Return a descriptor to lock; None if this user may not write."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return os.open(folder / _LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        if error.errno in REFUSALS:
            return None
        raise


def _read_platforms(path: Path) -> list[Path]:
    try:
        return [Path(place) for place in _decode(path.read_bytes())]
    except (FileNotFoundError, msgspec.DecodeError):
        return []  # a lost registry only means another number at the next `up`


def _platform_sockets(data_dir: Path) -> frozenset[choices.ListenSocket]:
    try:
        record = records.load_record(PlatformPaths(data_dir).record_path)
    except (VkgatewayError, OSError):
        return frozenset()
    return choices.listen_sockets(record) if record is not None else frozenset()
