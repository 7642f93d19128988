"""Choices of a platform that must not change: stored in platform.json, read by every later command."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vkgateway.api.errors import ConflictError, InputError
from vkgateway.planes.atomic_files import SECRET_MODE, write_file
from vkgateway_platform.embedded.options import DEFAULT_VERSION, HOLLOW_NODES, RealNodeChoice

LAYOUT_VERSION = 1
"""Version of the data directory's layout; raised when an older vkgateway cannot use it."""


class PlatformRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """Choices of one platform."""

    layout: int = LAYOUT_VERSION
    number: int = 0
    """Number that distinguishes platforms on one machine: their interfaces, addresses, cgroups."""
    interface: str = ""
    """Network interface of the platform; empty if it uses the machine's address."""
    address: str = ""
    """Address of API servers and kubelet endpoints."""
    ports: dict[str, int] = {}
    kubernetes_version: str = DEFAULT_VERSION
    real_node: RealNodeChoice = "auto"
    real_node_why_not: str | None = None
    """Why there is no real node; None if there is one."""
    hollow_nodes: dict[str, int] = msgspec.field(default_factory=lambda: dict(HOLLOW_NODES))
    durable: bool = True
    """Whether etcd waits for the disk; false for benchmarks only."""
    templates_dir: str = ""
    """Directory of tenant templates; empty for the shipped ones."""
    program_dirs: tuple[str, ...] = ()
    """Directories that are searched for programs first."""
    webhook_ranges: tuple[str, ...] = ()
    """CIDRs of private addresses at which webhooks by URL of tenants may be."""


class _Version(msgspec.Struct):
    layout: int


def load_record(path: Path) -> PlatformRecord | None:
    """Return the record; None if there is no platform.

    Raises:
        ConflictError: the directory has the layout of a newer vkgateway.
        InputError: the file is damaged.
    """
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return None
    try:
        layout = msgspec.json.decode(data, type=_Version).layout
        if layout <= LAYOUT_VERSION:
            return msgspec.json.decode(data, type=PlatformRecord)
    except msgspec.DecodeError as error:
        raise InputError(
            f"the platform's record {path} is damaged: {error}",
            hint=f"Restore it from a backup, or delete the platform and its data with "
            f"`vkgateway down --purge --data-dir {path.parent}`.",
        ) from error
    raise ConflictError(
        (
            f"the data directory {path.parent} has layout {layout}, and this vkgateway knows layouts up "
            f"to {LAYOUT_VERSION}"
        ),
        hint="Use the newer vkgateway that wrote it, or another --data-dir.",
    )


def save_record(path: Path, record: PlatformRecord) -> None:
    """Write the record atomically."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    write_file(path, data, mode=SECRET_MODE)
