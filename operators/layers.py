"""Layers of images: a root file system by mmdebstrap, Python packages by pip, programs and files."""

from __future__ import annotations

import io
import os
import shlex
import shutil
import sys
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from operators.recipes import LIBRARIES, PYTHON, SUITE, Compiled, File, Recipe, Root
from vkgateway.api.errors import UnavailableError
from vkgateway_platform.binaries.subprocesses import run_program
from vkgateway_platform.embedded.realnode.images import image_architecture

_DEBIAN = "apt-get install mmdebstrap; elsewhere build the image from the Dockerfile that the page shows"
# Files that containers do not need.
_LEFT_OUT = ("/usr/share/doc/*", "/usr/share/man/*", "/usr/share/locale/*", "/usr/share/info/*")
_MACHINES = {"amd64": "x86_64", "arm64": "aarch64"}
_BARE = {
    "etc/passwd": File("root:x:0:0:root:/:/sbin/nologin\napp:x:1000:1000::/:/sbin/nologin\n"),
    "etc/group": File("root:x:0:\napp:x:1000:\n"),
    "etc/nsswitch.conf": File("hosts: files dns\n"),
}


async def build_root(target: Path, wanted: Root) -> None:
    """Build a root file system of Debian packages, as a tar file.

    Raises:
        UnavailableError: mmdebstrap is missing or fails.
    """
    await run_mmdebstrap(str(target), wanted.packages, hooks=wanted.hooks)


async def install_packages(target: Path, recipe: Recipe, *, folder: Path) -> None:
    """Build a layer of Python packages for the images' Python with this Python's pip, in the work directory `folder`.

    Raises:
        UnavailableError: pip cannot download them.
    """
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--target", str(folder), "--no-compile"]
    if recipe.libraries:
        await run_checked(*pip, *wheel_options(image_architecture()), *recipe.libraries, what="pip")
    if recipe.sources:
        await run_checked(*pip, "--no-deps", *recipe.sources, what="pip")
    with tarfile.open(target, "w") as archive:
        archive.add(folder, LIBRARIES.lstrip("/"), filter=_anonymize)


async def compile_packages(target: Path, root: Root, wanted: Compiled, *, folder: Path) -> None:
    """Build a layer of Python packages, compiled in a root like the image's with tools, in the work directory `folder`.

    This Python's pip downloads the sources, so the build needs no network.

    Raises:
        UnavailableError: pip cannot download them, mmdebstrap is missing, or the compilation fails.
    """
    sources = folder / "sources"
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", f"--dest={sources}"]
    names = ",".join(package.partition("==")[0] for package in wanted.packages)
    await run_checked(*pip, f"--no-binary={names}", *wanted.packages, what="pip")
    environment = " ".join(shlex.quote(f"{name}={value}") for name, value in wanted.environment.items())
    install = f"python3 -m pip install --no-deps --no-index --no-build-isolation --no-compile --target={LIBRARIES}"
    hooks = (
        f"copy-in {shlex.quote(str(sources))} /opt",
        f'chroot "$1" sh -c {shlex.quote(f"env {environment} {install} /opt/sources/*")}',
        f"chroot \"$1\" find {LIBRARIES} -name '*.so' -exec strip --strip-debug {{}} +",
        f"copy-out {LIBRARIES} {shlex.quote(str(folder))}",
    )
    await run_mmdebstrap("-", root.packages + wanted.tools, hooks=hooks, options=("--format=null",))
    with tarfile.open(target, "w") as archive:
        archive.add(folder / Path(LIBRARIES).name, LIBRARIES.lstrip("/"), filter=_anonymize)


def pack_files(target: Path, programs: Mapping[str, Path], files: Mapping[str, File], *, empty: bool) -> None:
    """Build a layer of programs and files.

    `empty`: it is the lowest layer, so it also needs folders and a user list.
    """
    with tarfile.open(target, "w") as archive:
        if empty:
            for name, mode in (("tmp", 0o1777), ("etc", 0o755)):
                _folder_entry(archive, name, mode=mode)
        for path, file in (_BARE | dict(files) if empty else files).items():
            _file_entry(archive, path, file.text.encode(), mode=file.mode)
        for path, program in programs.items():
            archive.add(program, path, filter=_anonymize)


def wheel_options(architecture: str) -> list[str]:
    """Return pip's options that select wheels for the images' Python on an architecture as images name it."""
    machine = _MACHINES.get(architecture, architecture)
    platforms = [f"--platform={tag}_{machine}" for tag in ("manylinux_2_28", "manylinux_2_17", "manylinux2014")]
    return ["--only-binary=:all:", "--implementation=cp", f"--python-version={PYTHON}", *platforms]


async def run_mmdebstrap(
    target: str, packages: Sequence[str], *, hooks: Sequence[str] = (), options: Sequence[str] = ()
) -> None:
    """Build a root file system of the essential Debian packages and `packages`, as a tar file.

    `options` follow those that exclude documentation.

    Raises:
        UnavailableError: mmdebstrap is missing or fails.
    """
    if shutil.which("mmdebstrap") is None:
        raise UnavailableError("mmdebstrap is not installed; it builds images from Debian packages", hint=_DEBIAN)
    argv = ["mmdebstrap", "--quiet", "--variant=essential", f"--include={','.join(packages)}"]
    argv += [f"--dpkgopt=path-exclude={pattern}" for pattern in _LEFT_OUT]
    argv += options
    # Java's installation scripts fail without this directory.
    argv.append('--essential-hook=mkdir -p "$1/usr/share/man/man1"')
    argv += [f"--customize-hook={hook}" for hook in hooks]
    await run_checked(*argv, SUITE, target, what="mmdebstrap")


async def run_checked(*argv: str, what: str) -> None:
    """Run a program. Raises UnavailableError with `what` and the last line of its output if it fails."""
    code, lines = await run_program(argv, env=os.environ, cwd=Path("/"))
    if code:
        raise UnavailableError(f"{what} failed: {lines[-1] if lines else f'exit code {code}'}", hint=" ".join(argv))


def _anonymize(member: tarfile.TarInfo) -> tarfile.TarInfo:
    member.uid = member.gid = member.mtime = 0
    member.uname = member.gname = ""
    return member


def _folder_entry(archive: tarfile.TarFile, path: str, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.type, member.mode = tarfile.DIRTYPE, mode
    archive.addfile(member)


def _file_entry(archive: tarfile.TarFile, path: str, data: bytes, *, mode: int) -> None:
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(data), mode
    archive.addfile(member, io.BytesIO(data))
