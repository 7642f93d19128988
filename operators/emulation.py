"""Whether this machine runs programs of another architecture: emulators that the kernel starts for them.

The kernel lists them in binfmt_misc: https://docs.kernel.org/admin-guide/binfmt-misc.html.
"""

from __future__ import annotations

import struct
from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.realnode.images import image_architecture

ARCHITECTURES = ("amd64", "arm64")
"""Architectures that emulators are found for, as images name them."""

_REGISTERED = Path("/proc/sys/fs/binfmt_misc")
_CONTROL_FILES = frozenset({"register", "status"})
_ELF_MACHINES = {"amd64": 62, "arm64": 183}
_ELF_64_BIT_LITTLE_ENDIAN = b"\x7fELF\x02\x01\x01"
_ELF_IDENTIFICATION_BYTES = 16
_ELF_EXECUTABLE = 2
_OPENED_AT_REGISTRATION = "F"
"""Flag of an emulator that also starts in a root file system without it."""


def check_runnable(architecture: str) -> None:
    """Check that programs of an architecture run here, also in another root file system.

    Raises:
        UnavailableError: it is another architecture than the machine's, and no emulator is registered for it.
    """
    if architecture == image_architecture() or has_emulator(architecture, registered=_REGISTERED):
        return
    raise UnavailableError(
        f"this machine cannot run programs for {architecture}: no emulator is registered with the flag F",
        hint=f"Debian: apt install qemu-user-static. Or run the build on a machine with {architecture}.",
    )


def has_emulator(architecture: str, *, registered: Path) -> bool:
    """Return whether an enabled emulator is registered, and opened at its registration.

    `registered`: file system binfmt_misc.
    """
    header = _build_header(architecture)
    try:
        entries = [path.read_text() for path in registered.iterdir() if path.name not in _CONTROL_FILES]
        is_enabled = (registered / "status").read_text().strip() == "enabled"
    except OSError:
        return False
    return is_enabled and any(_runs(entry, header) for entry in entries)


def _build_header(architecture: str) -> bytes:
    """Return the start of a program's ELF header: identification, type and machine."""
    identification = _ELF_64_BIT_LITTLE_ENDIAN.ljust(_ELF_IDENTIFICATION_BYTES, b"\0")
    return identification + struct.pack("<HH", _ELF_EXECUTABLE, _ELF_MACHINES[architecture])


def _runs(entry: str, header: bytes) -> bool:
    """Return whether a registration is enabled, works in each root file system, and matches a program's header."""
    state, *lines = entry.splitlines()
    fields = {key.rstrip(":"): value for key, _, value in (line.partition(" ") for line in lines)}
    if state != "enabled" or _OPENED_AT_REGISTRATION not in fields.get("flags", ""):
        return False
    magic = bytes.fromhex(fields.get("magic", ""))
    mask = bytes.fromhex(fields["mask"]) if "mask" in fields else b"\xff" * len(magic)
    start = int(fields.get("offset", "0"))
    found = header[start : start + len(magic)]
    return len(found) == len(magic) > 0 and all(
        (one ^ wanted) & bits == 0 for one, wanted, bits in zip(found, magic, mask, strict=True)
    )
