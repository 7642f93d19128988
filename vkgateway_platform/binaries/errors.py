"""Errors on the way to a program, each one sentence with the way out."""

import errno
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from vkgateway.api.errors import InputError, UnavailableError, VkgatewayError

OWN_PROGRAMS_HINT = "or put the programs into a directory and set --program-dir or VKGATEWAY_PROGRAM_DIR"


class UnknownVersionError(InputError):
    """The requested release does not exist, or is older than the oldest supported one."""


class NoToolchainError(UnavailableError):
    """The machine has no Go toolchain and cannot get one."""


class NoNetworkError(UnavailableError):
    """Neither the official releases nor the Go module proxy is reachable."""


class DiskFullError(UnavailableError):
    """The disk has no space for the program or its build."""


class ChecksumError(UnavailableError):
    """A download does not match its published checksum."""


class CacheError(UnavailableError):
    """This user may not write to the cache."""


class BuildError(UnavailableError):
    """The build failed for another reason."""


REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""Error numbers for missing write permission."""

_DISK = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_CHECKSUM = re.compile(r"checksum mismatch|SECURITY ERROR|THESE PACKAGES DO NOT MATCH THE HASHES", re.IGNORECASE)
_NETWORK = re.compile(
    r"dial tcp|no such host|connection refused|connection reset|i/o timeout|network is unreachable"
    r"|proxyconnect|TLS handshake|name resolution|Could not resolve host|Failed to establish a new connection"
    r"|context deadline exceeded|module lookup disabled",
    re.IGNORECASE,
)
_VERSION = re.compile(
    r"unknown revision|invalid version|40[34] (Not Found|Forbidden)|410 Gone|not found: module|no matching versions",
    re.IGNORECASE,
)
_ERROR_WORDS = re.compile(r"error|cannot|failed|undefined|fatal|requires", re.IGNORECASE)


def cache_refused_error(folder: Path) -> CacheError:
    """Return the error for a directory that this user may not write to."""
    return CacheError(
        f"this user may not write to the program cache {folder}",
        hint=f"Choose another cache with XDG_CACHE_HOME, {OWN_PROGRAMS_HINT}.",
    )


def disk_full_error(folder: Path) -> DiskFullError:
    """Return the error for a full disk at `folder`."""
    try:
        free = f"{shutil.disk_usage(folder).free / 1e9:.1f} GB are free"
    except OSError:
        free = "it is full"
    return DiskFullError(
        f"no space left on the disk of {folder}: {free}, and a build of Kubernetes needs about 9 GB",
        hint="Free some ('vkgateway binaries prune' deletes old versions), or set XDG_CACHE_HOME to a larger disk.",
    )


def is_disk_full(error: OSError) -> bool:
    """Return whether a system call failed because the disk is full."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def checksum_error(what: str, *, detail: str) -> ChecksumError:
    """Return the error for `what`, which was changed in transit or at its source."""
    return ChecksumError(
        f"{what} does not match its published checksum: {detail}",
        hint="The download was deleted. Try again on a network that you trust, " + OWN_PROGRAMS_HINT,
    )


def error_from_output(lines: Sequence[str], *, what: str, folder: Path, log: Path) -> VkgatewayError:
    """Return the error that the output of a failed `go` or `pip` shows; `what` is the project and version."""
    text = "\n".join(lines)
    if _DISK.search(text):
        return disk_full_error(folder)
    if found := _first_match(lines, _CHECKSUM):
        return checksum_error(what, detail=found)
    if _VERSION.search(text) and not _only_network(lines):
        return UnknownVersionError(
            f"{what} cannot be had: {_first_match(lines, _VERSION)}",
            hint="Choose a released version; 'vkgateway binaries list' shows the defaults.",
        )
    if found := _first_match(lines, _NETWORK):
        return NoNetworkError(
            f"{what} cannot be fetched, the network is unreachable: {found}",
            hint=f"Connect this machine, or set HTTPS_PROXY or GOPROXY, {OWN_PROGRAMS_HINT}",
        )
    telling = _first_match(lines, _ERROR_WORDS) or (lines[-1] if lines else "no output")
    return BuildError(f"building {what} failed: {telling}", hint=f"The output is in {log}.")


def _first_match(lines: Sequence[str], pattern: re.Pattern[str]) -> str:
    return next((line.strip()[:300] for line in lines if pattern.search(line)), "")


def _only_network(lines: Sequence[str]) -> bool:
    return not any(_VERSION.search(line) and not _NETWORK.search(line) for line in lines)
