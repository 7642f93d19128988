"""The directory of a control plane on this machine."""

from __future__ import annotations

import contextlib
import datetime
from pathlib import Path

from vkgateway.controlplane.atomic_files import PUBLIC_MODE, SECRET_MODE, write_file
from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.plane import ControlPlaneSpec
from vkgateway.controlplane.plane_files import Authorities, PlaneFiles, is_secret, render_plane_files


def read_plane_files(directory: Path) -> PlaneFiles:
    """Return the files in a directory; none if it does not exist."""
    contents = {}
    for path in sorted(directory.glob("[!.]*")):  # a hidden file is one that is being written
        with contextlib.suppress(FileNotFoundError, IsADirectoryError):
            contents[path.name] = path.read_bytes()
    return PlaneFiles(directory, contents)


def write_plane_files(
    directory: Path,
    *,
    plane: ControlPlaneSpec,
    credentials: Credentials,
    authorities: Authorities,
    now: datetime.datetime,
) -> PlaneFiles:
    """Bring a directory up to date and return its files; a file that fits is not written. Raises OSError."""
    files = render_plane_files(
        plane, credentials=credentials, authorities=authorities, current=read_plane_files(directory), now=now
    )
    for name, content in files.contents.items():
        write_file(directory / name, content, mode=SECRET_MODE if is_secret(name) else PUBLIC_MODE)
    return files
