"""What can go wrong on the way to a program, each told in one sentence with the way out."""

import errno
import re
import shutil
from collections.abc import Sequence
from pathlib import Path

from vkgateway.model.errors import InputError, UnavailableError, VkgatewayError

OWN_PROGRAMS_HINT = "or put the programs into a folder and name it with --program-dir or VKGATEWAY_PROGRAM_DIR"


class UnknownVersionError(InputError):
    """The release asked for does not exist, or is older than what is supported."""


class NoToolchainError(UnavailableError):
    """There is no Go, and no way to get one."""


class NoNetworkError(UnavailableError):
    """Neither the official releases nor the Go module proxy can be reached."""


class DiskFullError(UnavailableError):
    """There is no room for the program, or for building it."""


class ChecksumError(UnavailableError):
    """What was downloaded is not what was published."""


class CacheError(UnavailableError):
    """This user may not write to the cache."""


class BuildError(UnavailableError):
    """The build failed for a reason of its own."""


REFUSALS = frozenset({errno.EACCES, errno.EPERM, errno.EROFS})
"""How the system says that a user may not write at a place."""

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
    """Nothing can be kept in `folder`."""
    return CacheError(
        f"the program cache {folder} may not be written by this user",
        hint=f"Choose another one with XDG_CACHE_HOME, {OWN_PROGRAMS_HINT}.",
    )


def disk_full_error(folder: Path) -> DiskFullError:
    """The disk that holds `folder` is full."""
    try:
        free = f"{shutil.disk_usage(folder).free / 1e9:.1f} GB are free"
    except OSError:
        free = "it is full"
    return DiskFullError(
        f"no room on the disk of {folder}: {free}, a build of Kubernetes needs about 9 GB",
        hint="free some ('vkgateway binaries prune' removes old versions), or set XDG_CACHE_HOME to a larger disk",
    )


def is_disk_full(error: OSError) -> bool:
    """Whether the system call failed for want of room."""
    return error.errno in (errno.ENOSPC, errno.EDQUOT)


def checksum_error(what: str, *, detail: str) -> ChecksumError:
    """`what` was changed on its way, or at its source."""
    return ChecksumError(
        f"{what} does not match its published checksum: {detail}",
        hint="nothing of it was kept; try again on a network that you trust, " + OWN_PROGRAMS_HINT,
    )


def error_from_output(lines: Sequence[str], *, what: str, folder: Path, log: Path) -> VkgatewayError:
    """The error that the output of a failed `go` or `pip` tells of; `what` is the project and version."""
    text = "\n".join(lines)
    if _DISK.search(text):
        return disk_full_error(folder)
    if found := _first_match(lines, _CHECKSUM):
        return checksum_error(what, detail=found)
    if _VERSION.search(text) and not _only_network(lines):
        return UnknownVersionError(
            f"{what} cannot be had: {_first_match(lines, _VERSION)}",
            hint="ask for a version that was released; 'vkgateway binaries list' shows the defaults",
        )
    if found := _first_match(lines, _NETWORK):
        return NoNetworkError(
            f"{what} cannot be fetched, the network is not there: {found}",
            hint=f"connect this machine, or set HTTPS_PROXY or GOPROXY, {OWN_PROGRAMS_HINT}",
        )
    telling = _first_match(lines, _ERROR_WORDS) or (lines[-1] if lines else "no output")
    return BuildError(f"building {what} failed: {telling}", hint=f"the whole output is in {log}")


def _first_match(lines: Sequence[str], pattern: re.Pattern[str]) -> str:
    return next((line.strip()[:300] for line in lines if pattern.search(line)), "")


def _only_network(lines: Sequence[str]) -> bool:
    return not any(_VERSION.search(line) and not _NETWORK.search(line) for line in lines)
