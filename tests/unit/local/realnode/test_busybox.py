"""The parts of images from the machine's busybox, and the script that replaces its wget."""

import shutil
import subprocess
from pathlib import Path

import pytest

from vkgateway_platform.embedded.realnode.busybox import WGET_WITH_TIMEOUT, is_static, list_libraries, paths_in


def test_libraries_are_the_paths_that_ldd_lists() -> None:
    listing = """
\tlinux-vdso.so.1 (0x00007ffd3b9f2000)
\tlibc.so.6 => /lib/x86_64-linux-gnu/libc.so.6 (0x00007f0c6c1d5000)
\t/lib64/ld-linux-x86-64.so.2 (0x00007f0c6c3c7000)
"""
    assert paths_in(listing) == ["/lib/x86_64-linux-gnu/libc.so.6", "/lib64/ld-linux-x86-64.so.2"]


def test_static_program_needs_no_libraries(tmp_path: Path) -> None:
    program = tmp_path / "program"
    program.write_bytes(b"\x7fELF...")
    assert is_static(program)
    assert list_libraries(program) == []
    program.write_bytes(b"\x7fELF/lib64/ld-linux-x86-64.so.2")
    assert not is_static(program)


@pytest.fixture
def wget(tmp_path: Path) -> Path:
    """Return the script, with fakes of busybox's wget and timeout that print their arguments."""
    busybox = tmp_path / "busybox"
    busybox.write_text(
        """#!/bin/sh
case $1 in
timeout) [ "$2" != 9 ] || exit 143; echo "within $2 s:"; shift 2; exec "$@" ;;
*) shift; printf "<%s>" "$@"; echo ;;
esac
"""
    )
    script = tmp_path / "wget"
    script.write_text(WGET_WITH_TIMEOUT.replace("/bin/busybox", str(busybox)))
    for file in (busybox, script):
        file.chmod(0o755)
    if shutil.which("getopt") is None:
        pytest.skip("no getopt here")
    return script


@pytest.mark.parametrize(
    ("asked", "done"),
    [
        ("-qO- http://web", "<http://web><-q><-O><->"),
        ("-T 3 -q http://web", "within 3 s:\n<http://web><-q>"),
        ("-qT3 http://web", "within 3 s:\n<http://web><-q>"),
        ("http://web --timeout=3 --spider", "within 3 s:\n<http://web><--spider>"),
        ("--header 'Host: -T 7' -O 'a b' http://web", "<http://web><--header><Host: -T 7><-O><a b>"),
        ("-O -T http://web", "<http://web><-O><-T>"),
    ],
)
def test_wget_limits_the_download_and_forwards_other_arguments(wget: Path, asked: str, done: str) -> None:
    result = subprocess.run(f"{wget} {asked}", shell=True, capture_output=True, text=True, check=True)
    assert result.stdout.strip() == done


def test_wget_reports_a_download_that_takes_too_long(wget: Path) -> None:
    result = subprocess.run([wget, "-T", "9", "http://web"], capture_output=True, text=True, check=False)
    assert (result.returncode, result.stderr) == (1, "wget: download timed out\n")
