"""What was chosen for a platform and has to stay so: kept in platform.json, read by every later command."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vkgateway.controlplane.atomic_files import SECRET_MODE, write_file
from vkgateway.local.options import DEFAULT_VERSION, HOLLOW_NODES, RealNodeChoice
from vkgateway.model.errors import ConflictError, InputError

LAYOUT_VERSION = 1
"""Version of the data directory's layout; raised when an older vkgateway could not work with it."""


class PlatformRecord(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The choices of one platform."""

    layout: int = LAYOUT_VERSION
    number: int = 0
    """Sets platforms on one machine apart: their interface, addresses, control groups."""
    interface: str = ""
    """Network interface made for the platform; empty where it uses the machine's own address."""
    address: str = ""
    """Where API servers and kubelet endpoints listen."""
    ports: dict[str, int] = {}
    kubernetes_version: str = DEFAULT_VERSION
    real_node: RealNodeChoice = "auto"
    real_node_why_not: str | None = None
    """Why there is no real node; None where there is one."""
    hollow_nodes: dict[str, int] = msgspec.field(default_factory=lambda: dict(HOLLOW_NODES))
    durable: bool = True
    """Whether etcd waits for the disk; only benchmarks do without."""
    templates_dir: str = ""
    """Folder of tenant templates; empty: those shipped."""
    program_dirs: tuple[str, ...] = ()
    """Folders in which programs are looked for first."""


class _Version(msgspec.Struct):
    layout: int


def load_record(path: Path) -> PlatformRecord | None:
    """Read the record; None where there is no platform.

    Raises:
        ConflictError: the directory was laid out by a newer vkgateway.
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
            hint=f"Put back a copy of it, or take the platform and its data away with "
            f"`vkgateway down --purge --data-dir {path.parent}`.",
        ) from error
    raise ConflictError(
        (
            f"the data directory {path.parent} has layout {layout}, and this vkgateway knows layouts up "
            f"to {LAYOUT_VERSION}"
        ),
        hint="Use the newer vkgateway that made it, or another --data-dir.",
    )


def save_record(path: Path, record: PlatformRecord) -> None:
    """Write the record; the old one or the new one is there at any moment."""
    data = msgspec.json.format(msgspec.json.encode(record), indent=2) + b"\n"
    write_file(path, data, mode=SECRET_MODE)
