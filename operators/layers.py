"""The layers of images: a root file system by mmdebstrap, Python packages by pip, programs and files as they are."""

from __future__ import annotations

import io
import os
import shutil
import sys
import tarfile
from collections.abc import Mapping
from pathlib import Path

from operators.recipes import LIBRARIES, PYTHON, SUITE, File, Recipe, Root
from vkgateway.local.realnode.images import architecture
from vkgateway.model.errors import UnavailableError
from vkgateway.programs.binaries.run import run

_DEBIAN = "apt-get install mmdebstrap; elsewhere build the image from the Dockerfile that the page shows"
# What nobody reads in a container.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_BARE = {
    "etc/passwd": File("root:x:0:0:root:/:/sbin/nologin\napp:x:1000:1000::/:/sbin/nologin\n"),
    "etc/group": File("root:x:0:\napp:x:1000:\n"),
    "etc/nsswitch.conf": File("hosts: files dns\n"),
}


async def root(target: Path, wanted: Root) -> None:
    """Make a root file system of Debian packages, as a tar file.

    Raises:
        UnavailableError: there is no mmdebstrap, or it fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise UnavailableError("mmdebstrap is not installed: it makes images from Debian packages", hint=_DEBIAN)
    argv = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(wanted.packages)}"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    # Java's installation scripts fail where this folder is not.
    argv.append('--essential-hook=mkdir -p "$1/usr/share/man/man1"')
    argv += [f"--customize-hook={hook}" for hook in wanted.hooks]
    await _must(*argv, SUITE, str(target), what="mmdebstrap")


async def libraries(target: Path, recipe: Recipe, *, folder: Path) -> None:
    """Make a layer of Python packages for the images' Python, by this Python's pip; `folder` is for its work.

    Raises:
        UnavailableError: pip cannot get them.
    """
    machine = _MACHINES.get(architecture(), architecture())
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--no-compile"]
    wheels = ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}"]
    wheels += [f"--platform={tag}_{machine}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    if recipe.libraries:
        await _must(*pip, *wheels, *recipe.libraries, what="pip")
    if recipe.sources:
        await _must(*pip, "--no-deps", *recipe.sources, what="pip")
    with tarfile.open(target, "w") as archive:
        archive.add(folder, LIBRARIES.lstrip("/"), filter=_anonymous)


def bare(target: Path, programs: Mapping[str, Path], files: Mapping[str, File], *, empty: bool) -> None:
    """Make a layer of programs and files; `empty`: there is no layer below, so folders and a list of users too."""
    with tarfile.open(target, "w") as archive:
        if empty:
            for name, mode in (("tmp", 0o1777), ("etc", 0o755)):
                _folder(archive, name, mode=mode)
        for path, file in (_BARE | dict(files) if empty else files).items():
            _file(archive, path, file.text.encode(), mode=file.mode)
        for path, program in programs.items():
            archive.add(program, path, filter=_anonymous)


async def _must(*argv: str, what: str) -> None:
    code, lines = await run(argv, env=os.environ, cwd=Path("/"))
    if code:
        raise UnavailableError(f"{what} failed: {lines[-1] if lines else f'exit code {code}'}", hint=" ".join(argv))


def _anonymous(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _folder(archive: tarfile.TarFile, path: str, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, mode
    archive.addfile(member)


def _file(archive: tarfile.TarFile, path: str, data: bytes, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
