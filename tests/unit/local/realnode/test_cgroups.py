"""The cgroup of pods in fake trees of both versions."""

import threading
from pathlib import Path

import pytest

from vkgateway_platform.embedded.realnode.cgroups import Cgroups


@pytest.fixture
def version1(tmp_path: Path) -> Path:
    for name in ("cpu,cpuacct", "cpuset", "memory", "pids", "systemd", "unified"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "cgroup.procs").write_text("1\n")
    (tmp_path / "cpu").symlink_to("cpu,cpuacct")
    (tmp_path / "cpuset/cpuset.cpus").write_text("0-1\n")
    (tmp_path / "cpuset/cpuset.mems").write_text("0\n")
    return tmp_path


@pytest.fixture
def version2(tmp_path: Path) -> Path:
    (tmp_path / "cgroup.controllers").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.subtree_control").write_text("cpuset cpu io memory pids\n")
    (tmp_path / "cgroup.procs").write_text("1\n")
    return tmp_path


def test_version_1_cgroup_is_created_in_each_hierarchy(version1: Path) -> None:
    cgroups = Cgroups("vkg3", version1)
    cgroups.create(memory=1 << 30)
    cgroups.create(memory=1 << 30)
    assert (version1 / "memory/vkg3/memory.limit_in_bytes").read_text() == str(1 << 30)
    made = sorted(str(path.relative_to(version1)) for path in version1.glob("*/vkg3") if not path.parent.is_symlink())
    assert made == [f"{name}/vkg3" for name in ("cpu,cpuacct", "cpuset", "memory", "pids", "systemd", "unified")]
    assert (version1 / "cpuset/vkg3/cpuset.cpus").read_text() == "0-1\n"


def test_missing_controllers_are_named(version1: Path) -> None:
    assert Cgroups("vkg3", version1).find_obstacle() is None
    (version1 / "memory/cgroup.procs").unlink()
    assert Cgroups("vkg3", version1).find_obstacle() == f"the cgroup controllers memory are not mounted at {version1}"


def test_missing_cgroups_are_an_obstacle(tmp_path: Path) -> None:
    assert "are not mounted" in (Cgroups("vkg3", tmp_path / "none").find_obstacle() or "")


def test_version_2_with_delegated_controllers_is_accepted(version2: Path) -> None:
    assert Cgroups("vkg3", version2).find_obstacle() is None


def test_version_2_with_processes_at_the_root_is_an_obstacle(version2: Path) -> None:
    (version2 / "cgroup.subtree_control").write_text("\n")
    assert Cgroups("vkg3", version2).find_obstacle() is None  # the real root has no cgroup.type
    (version2 / "cgroup.type").write_text("domain\n")
    assert "holds processes itself" in (Cgroups("vkg3", version2).find_obstacle() or "")
    (version2 / "cgroup.procs").write_text("")
    assert Cgroups("vkg3", version2).find_obstacle() is None


@pytest.mark.parametrize("version", ["version1", "version2"])
def test_missing_permission_for_cgroups_is_an_obstacle(
    version: str, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch
) -> None:
    root: Path = request.getfixturevalue(version)
    assert Cgroups("vkg3", root).find_obstacle() is None
    monkeypatch.setattr("os.access", lambda path, _mode: path not in {root, root / "memory"})
    assert "may not be written" in (Cgroups("vkg3", root).find_obstacle() or "")


def test_members_include_descendant_cgroups(version1: Path) -> None:
    for group, pids in (
        ("memory/vkg3", ""),
        ("memory/vkg3/kubepods/a", "11\n12\n"),
        ("pids/vkg3/kubepods/b", "12\n13\n"),
    ):
        (version1 / group).mkdir(parents=True)
        (version1 / group / "cgroup.procs").write_text(pids)
    assert Cgroups("vkg3", version1).list_members() == {11, 12, 13}
    assert Cgroups("vkg4", version1).list_members() == set()


def test_members_are_read_while_cgroups_change(version1: Path) -> None:
    lasting = version1 / "memory/vkg3/kubepods"
    lasting.mkdir(parents=True)
    (lasting / "cgroup.procs").write_text("11\n")
    over = threading.Event()

    def start_and_end() -> None:
        while not over.is_set():
            (lasting / "a/b/c").mkdir(parents=True)
            for name in ("a/b/c", "a/b", "a"):
                (lasting / name).rmdir()

    other = threading.Thread(target=start_and_end)
    other.start()
    try:
        assert all(Cgroups("vkg3", version1).list_members() == {11} for _ in range(500))
    finally:
        over.set()
        other.join()


def test_remove_deletes_descendants_but_no_sibling(version1: Path) -> None:
    for group in ("memory/vkg3/kubepods/besteffort/a", "pids/vkg3", "memory/vkg31"):
        (version1 / group).mkdir(parents=True)
    cgroups = Cgroups("vkg3", version1)
    cgroups.remove()
    cgroups.remove()
    assert [path.name for path in (version1 / "memory").iterdir() if path.is_dir()] == ["vkg31"]
    assert not (version1 / "pids/vkg3").exists()
