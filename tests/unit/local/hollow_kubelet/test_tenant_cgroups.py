"""Cgroups of commands: one for each tenant, in both versions of cgroups, and none where they cannot be written."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkgateway_platform.embedded.hollow.kubelet.tenant_cgroups import TenantCgroups

DATA_DIR = Path("/var/lib/vkgateway")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A hierarchy of version 1."""
    (tmp_path / "cpu").mkdir()
    return tmp_path


def groups(root: Path) -> set[str]:
    return {path.name for path in (root / "cpu").glob("*/*")}


def controls(root: Path) -> list[Path]:
    return [root / "cgroup.subtree_control", *root.glob("*/cgroup.subtree_control")]


async def test_each_tenant_has_one_group_while_its_commands_run(root: Path) -> None:
    async with TenantCgroups(DATA_DIR, root=root) as cgroups:
        with cgroups.hold_group("alpha") as first, cgroups.hold_group("beta") as other:
            with cgroups.hold_group("alpha") as second:
                assert first == second != other
                assert groups(root) == {"tenant-alpha", "tenant-beta"}
                assert Path(first).parent == next((root / "cpu").glob("*/tenant-alpha"))
            assert groups(root) == {"tenant-alpha", "tenant-beta"}
        assert groups(root) == set()
    assert not list((root / "cpu").iterdir())


async def test_groups_of_a_killed_process_are_removed(root: Path) -> None:
    cgroups = TenantCgroups(DATA_DIR, root=root)
    await cgroups.__aenter__()
    held = cgroups.hold_group("alpha")
    held.__enter__()
    assert groups(root) == {"tenant-alpha"}
    async with TenantCgroups(DATA_DIR, root=root):
        assert groups(root) == set()
    assert not list((root / "cpu").iterdir())


async def test_platforms_have_different_groups(root: Path) -> None:
    async with TenantCgroups(DATA_DIR, root=root), TenantCgroups(Path("/other"), root=root):
        assert len(list((root / "cpu").iterdir())) == 2


async def test_version_2_enables_the_cpu_controller(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "cgroup.controllers").write_text("cpu io memory")
    (tmp_path / "cgroup.subtree_control").write_text("memory")
    make_folder = Path.mkdir

    def make_group(self: Path, mode: int = 0o777, parents: bool = False, exist_ok: bool = False) -> None:
        make_folder(self, mode, parents, exist_ok)
        if self.parent == tmp_path:
            (self / "cgroup.subtree_control").touch()

    monkeypatch.setattr(Path, "mkdir", make_group)
    cgroups = TenantCgroups(DATA_DIR, root=tmp_path)
    await cgroups.__aenter__()
    assert [file.read_text() for file in controls(tmp_path)] == ["+cpu", "+cpu"]
    with cgroups.hold_group("alpha") as joined:
        assert joined.endswith("/tenant-alpha/cgroup.procs")


@pytest.mark.parametrize("version", [1, 2])
async def test_commands_run_without_groups_where_they_cannot_be_written(tmp_path: Path, version: int) -> None:
    if version == 2:
        (tmp_path / "cgroup.controllers").touch()
    async with TenantCgroups(DATA_DIR, root=tmp_path) as cgroups, TenantCgroups(DATA_DIR, root=tmp_path / "no"):
        with cgroups.hold_group("alpha") as joined:
            assert joined == ""
