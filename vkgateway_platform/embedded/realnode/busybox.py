"""Debian's busybox as the files of an image: the program, its shared libraries, and links for its applets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from vkgateway_platform.embedded.realnode.host import run_command

# Long enough to contain the name of a program's loader.
_HEAD: Final = 4096

WGET_WITH_TIMEOUT: Final = """\
#!/bin/sh
# Debian's busybox before 1.36.1-5 has no timeout in wget, and crashes at -T.
long=continue,quiet,server-response,spider,output-document:,output-file:,directory-prefix:,header:,post-data:,post-file:
long=$long,user-agent:,proxy:,tries:,timeout:,no-check-certificate,no-cache,passive-ftp
words=$(getopt -n wget -o cqSO:o:P:Y:U:t:T: -l $long -- "$@") || exit 1
eval set -- "$words"
limit=
while [ "$1" != -- ]; do
    case $1 in
    -T | --timeout) limit=$2; shift ;;
    -[OoPYUt] | --output-* | --directory-prefix | --header | --post-* | --user-agent | --proxy | --tries)
        set -- "$@" "$1" "$2"; shift ;;
    *) set -- "$@" "$1" ;;
    esac
    shift
done
shift
[ -n "$limit" ] || exec /bin/busybox wget "$@"
/bin/busybox timeout "$limit" /bin/busybox wget "$@"
code=$?
[ $code -ne 143 ] || { echo "wget: download timed out" >&2; code=1; }
exit $code
"""
"""Replacement for `wget` if busybox has no timeout: `-T` limits the whole download."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Busybox:
    """One busybox of the machine."""

    program: bytes
    libraries: Sequence[tuple[str, bytes]] = ()
    """Path in the image and content of each shared library, including the loader; empty if all programs are static."""
    applets: Sequence[str] = ()
    wget_has_timeout: bool = True
    ping: bytes = b""
    """Another program instead of busybox's ping, which requires a capability in Debian; empty for none."""

    @classmethod
    def from_file(cls, program: Path, *, ping: Path | None = None) -> Busybox:
        """Return the busybox in a file, with another program as its ping.

        Raises:
            ToolError: busybox does not run here.
        """
        needed = dict.fromkeys([*list_libraries(program), *(list_libraries(ping) if ping else ())])
        return cls(
            program=program.read_bytes(),
            libraries=[(path, Path(path).read_bytes()) for path in needed],
            ping=ping.read_bytes() if ping else b"",
            applets=run_command(str(program), "--list").split(),
            wget_has_timeout="-T" in run_command("sh", "-c", '"$0" wget --help 2>&1', str(program)),
        )


def is_static(program: Path) -> bool:
    """Return whether a program runs without a loader and shared libraries. Raises FileNotFoundError."""
    with program.open("rb") as file:
        return b"/ld-" not in file.read(_HEAD)


def list_libraries(program: Path) -> list[str]:
    """Return the paths of a program's shared libraries, including its loader, from ldd(1).

    Raises:
        ToolError: ldd does not know the program, or a library is missing.
    """
    return [] if is_static(program) else paths_in(run_command("ldd", str(program)))


def paths_in(listing: str) -> list[str]:
    """Return the absolute paths in the output of ldd(1): `NAME => PATH (ADDRESS)` or `PATH (ADDRESS)` a line."""
    return [word for line in listing.splitlines() for word in line.split() if word.startswith("/")]
