"""A root file system from Debian's packages, as an archive that serves as an image's layer."""

from __future__ import annotations

import platform
from collections.abc import Sequence
from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.embedded.realnode.host import run_command
from vkgateway_platform.embedded.realnode.probe import find_tool

_SECONDS = 600.0
_UNWANTED = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")


def release_name() -> str:
    """Return the code name of this machine's release: `bookworm`.

    Raises:
        UnavailableError: the machine has none.
    """
    name = platform.freedesktop_os_release().get("VERSION_CODENAME", "")
    if not name:
        raise UnavailableError("this machine's /etc/os-release names no release of Debian or Ubuntu")
    return name


def make_root(archive: Path, *, packages: Sequence[str], commands: Sequence[str] = ()) -> None:
    """Write the packages and their dependencies into the tar file `archive`.

    Each of `commands` is a shell command that runs on this machine at the end, with the new root as `$1`.

    Raises:
        UnavailableError: this machine has no mmdebstrap, or does not run Debian or a derivative.
        ToolError: packages are not available.
    """
    if find_tool("mmdebstrap") is None:
        raise UnavailableError("mmdebstrap is not installed", hint="On Debian and Ubuntu: apt install mmdebstrap")
    archive.parent.mkdir(parents=True, exist_ok=True)
    options = [f"--dpkgopt=path-exclude={pattern}" for pattern in _UNWANTED]
    options += [f"--customize-hook={command}" for command in commands]
    unfinished = archive.with_suffix(".unfinished.tar")
    include = f"--include={','.join(packages)}"
    run_command(
        "mmdebstrap",
        "--quiet",
        "--variant=essential",
        include,
        *options,
        release_name(),
        str(unfinished),
        timeout=_SECONDS,
    )
    unfinished.replace(archive)
