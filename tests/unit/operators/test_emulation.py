"""Emulators for programs of another architecture: which registrations of the kernel run them."""

from __future__ import annotations

from pathlib import Path

import pytest

from operators.emulation import has_emulator

ARM64 = "7f454c460201010000000000000000000200b700"
MASK = "ffffffffffffff00fffffffffffffffffeffffff"
"""As Debian registers qemu-aarch64: the OS ABI and shared objects may differ."""


def register(folder: Path, *, state: str = "enabled", flags: str = "OCF", magic: str = ARM64) -> None:
    (folder / "status").write_text("enabled\n")
    entry = f"{state}\ninterpreter /usr/bin/emulator\nflags: {flags}\noffset 0\nmagic {magic}\nmask {MASK}\n"
    (folder / "any-name").write_text(entry)


def test_a_registered_emulator_is_found_by_what_it_runs(tmp_path: Path) -> None:
    register(tmp_path)
    assert has_emulator("arm64", registered=tmp_path)
    assert not has_emulator("amd64", registered=tmp_path)


@pytest.mark.parametrize("change", [{"state": "disabled"}, {"flags": "OC"}, {"magic": ARM64.replace("b7", "f3")}])
def test_a_registration_that_does_not_run_it_does_not_count(tmp_path: Path, change: dict[str, str]) -> None:
    register(tmp_path, **change)
    assert not has_emulator("arm64", registered=tmp_path)


def test_a_registration_by_file_extension_does_not_count(tmp_path: Path) -> None:
    register(tmp_path)
    (tmp_path / "any-name").write_text("enabled\ninterpreter /usr/bin/wine\nflags: F\nextension .exe\n")
    assert not has_emulator("arm64", registered=tmp_path)


def test_the_kernel_may_ignore_all_registrations(tmp_path: Path) -> None:
    register(tmp_path)
    (tmp_path / "status").write_text("disabled\n")
    assert not has_emulator("arm64", registered=tmp_path)


def test_the_kernel_may_have_no_registrations(tmp_path: Path) -> None:
    assert not has_emulator("arm64", registered=tmp_path / "absent")
