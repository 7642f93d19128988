"""Debian packages that are unpacked into the cache instead of installed, for programs that only tests use."""

from __future__ import annotations

import asyncio
import os
import shutil
from collections.abc import Callable
from pathlib import Path

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.subprocesses import run_program

_TOOLS = ("apt-get", "dpkg-deb")


async def unpack_package(
    package: str, *, program: str, report: Callable[[str], None], cache: Cache | None = None
) -> Path:
    """Return the path of `program` in a Debian package, which is downloaded if it is missing: `debian/PACKAGE` in the
    cache. `program` is its path in the package, such as `usr/bin/promtool`.

    Raises:
        UnavailableError: the machine has no apt, or the package cannot be downloaded.
    """
    cache = cache or Cache(Cache.default_root())
    folder = cache.root / "debian" / package
    async with cache.locks.hold(f"debian-{package}", report=report):
        if not (folder / program).exists():
            report(f"downloading the Debian package {package}")
            await _download_package(package, folder)
    if not (folder / program).exists():
        raise UnavailableError(f"the Debian package {package} has no /{program}")
    return folder / program


async def _download_package(package: str, folder: Path) -> None:
    """Unpack into a temporary directory and move it in atomically, so that an existing one is complete."""
    if missing := [tool for tool in _TOOLS if shutil.which(tool) is None]:
        raise UnavailableError(f"cannot unpack the Debian package {package}: {' and '.join(missing)} not found")
    work = folder.with_name(f".{folder.name}")
    await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)
    work.mkdir(parents=True)
    try:
        download = ("apt-get", "download", "-qq", package)
        try:
            await _run(*download, cwd=work)
        except UnavailableError:
            await _run("apt-get", "update", "-qq", cwd=work)
            await _run(*download, cwd=work)
        for archive in work.glob("*.deb"):
            await _run("dpkg-deb", "-x", str(archive), "root", cwd=work)
        await asyncio.to_thread(shutil.rmtree, folder, ignore_errors=True)
        (work / "root").replace(folder)
    finally:
        await asyncio.to_thread(shutil.rmtree, work, ignore_errors=True)


async def _run(*argv: str, cwd: Path) -> None:
    code, lines = await run_program(argv, env=os.environ, cwd=cwd)
    if code:
        what = " ".join(argv)
        raise UnavailableError(f"{what} failed: {lines[-1] if lines else f'exit code {code}'}")
