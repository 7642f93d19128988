"""Each obstacle is one reason with the way out."""

import os
import sys
from pathlib import Path

import pytest

from vkgateway_platform.embedded.realnode import probe as probing
from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.host import ToolError


@pytest.fixture(autouse=True)
def capable(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A machine that can run a real node."""
    monkeypatch.setattr(sys, "platform", "linux")
    monkeypatch.setattr(probing, "_KMSG", tmp_path)
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    monkeypatch.setattr(probing, "find_tool", lambda name: Path("/usr/sbin", name))
    monkeypatch.setattr(probing, "find_plugins", lambda: Path("/usr/lib/cni"))
    monkeypatch.setattr(probing, "static_busybox", lambda: True)
    monkeypatch.setattr(Cgroups, "find_obstacle", lambda _: None)
    monkeypatch.setattr(probing, "run_command", lambda *_: "")


def test_capable_machine_has_no_reason() -> None:
    assert probing.find_obstacle() is None


def test_other_systems_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    assert probing.find_obstacle() == "a real node needs Linux"


def test_kernel_log_is_needed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(probing, "_KMSG", tmp_path / "kmsg")
    assert probing.find_obstacle() == f"the kubelet needs {tmp_path / 'kmsg'}, which is not there"


def test_root_is_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert probing.find_obstacle() == "a real node needs root"


def test_missing_programs_are_listed_with_one_install_command(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(probing, "find_tool", lambda name: None if name in {"runc", "nft"} else Path("/bin", name))
    monkeypatch.setattr(probing, "find_plugins", lambda: None)
    monkeypatch.setattr(probing, "static_busybox", lambda: False)
    assert probing.find_obstacle() == (
        "missing runc, nft, the CNI plugins, a static /bin/busybox: "
        "apt-get install busybox-static containernetworking-plugins nftables runc"
    )


def test_cgroups_are_needed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Cgroups, "find_obstacle", lambda _: "no cgroups")
    assert probing.find_obstacle() == "no cgroups"


def test_kernel_that_refuses_is_quoted(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> str:
        raise ToolError("`unshare` failed: Operation not permitted")

    monkeypatch.setattr(probing, "run_command", refuse)
    assert "Operation not permitted" in (probing.find_obstacle() or "")


def test_plugins_are_found_where_all_of_them_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    some, every = tmp_path / "some", tmp_path / "every"
    for folder, names in ((some, ["ptp"]), (every, ["ptp", "host-local", "loopback"])):
        folder.mkdir()
        for name in names:
            (folder / name).touch()
    monkeypatch.setattr(probing, "_CNI_DIRECTORIES", (some, every))
    assert probing.find_plugins() == every
    monkeypatch.setattr(probing, "_CNI_DIRECTORIES", (some,))
    assert probing.find_plugins() is None


@pytest.mark.parametrize(("start", "static"), [(b"\x7fELF...", True), (b"\x7fELF/lib64/ld-linux-x86-64.so.2", False)])
def test_busybox_that_needs_libraries_is_not_enough(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, start: bytes, static: bool
) -> None:
    monkeypatch.undo()
    program = tmp_path / "busybox"
    monkeypatch.setattr(probing, "BUSYBOX", program)
    assert probing.static_busybox() is False
    program.write_bytes(start)
    assert probing.static_busybox() is static


def test_overlay_that_the_kernel_refuses_leaves_nothing_behind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: str) -> str:
        raise ToolError("no")

    assert probing.overlay_works(tmp_path) is True
    monkeypatch.setattr(probing, "run_command", refuse)
    assert probing.overlay_works(tmp_path) is False
    assert list(tmp_path.iterdir()) == []
