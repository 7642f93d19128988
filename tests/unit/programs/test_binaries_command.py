"""`vkgateway binaries`: output and exit codes."""

import json
import os
from pathlib import Path

import pytest

from vkgateway.cli.main import run_command
from vkgateway_platform.binaries.cache import Cache
from vkgateway_platform.binaries.catalogue import PROGRAMS


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Cache:
    """A cache with etcd 3.6.8 and an older one; the machine has no other program."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setenv("PATH", "/nowhere")
    monkeypatch.delenv("VKGATEWAY_PROGRAM_DIR", raising=False)
    cache = Cache(tmp_path / "vkgateway")
    for version in ("3.6.8", "3.5.0"):
        built = tmp_path / "built"
        built.write_text("#!/bin/sh\n")
        cache.install_program(built, "etcd", version, source="official release")
    return cache


def test_list_shows_present_missing_and_old_programs(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", "list", "-o", "json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["program"] for row in rows] == [*PROGRAMS, "etcd"]
    etcd = next(row for row in rows if row["program"] == "etcd")
    assert (etcd["version"], etcd["found"], etcd["source"]) == ("3.6.8", "cache", "official release")
    assert etcd["sizeBytes"] == len("#!/bin/sh\n")
    assert (rows[-1]["version"], rows[-1]["wanted"]) == ("3.5.0", False)
    assert rows[0] == {
        "program": "kube-apiserver",
        "project": "kubernetes",
        "version": "1.36.3",
        "found": "",
        "path": "",
        "sizeBytes": 0,
        "source": "",
        "wanted": True,
    }


def test_table_marks_missing_and_old_programs(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", "list"]) == 0
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    assert lines[0] == ["PROGRAM", "VERSION", "FOUND", "SIZE", "SOURCE", "PATH"]
    assert [line[1:3] for line in lines if line[0] == "etcd"] == [["3.6.8", "cache"], ["3.5.0", "old"]]
    assert ["kubelet", "1.36.3", "missing", "-", "-", "-"] in lines


def test_path_prints_the_file(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", "path", "etcd"]) == 0
    assert capsys.readouterr().out == f"{cache.program_path('etcd', '3.6.8')}\n"


def test_path_of_a_missing_program_is_unavailable(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", "path", "kubelet", "--kubernetes-version", "1.34.4"]) == 5
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "kubelet 1.34.4 is missing" in captured.err
    assert "`vkgateway binaries fetch kubelet --kubernetes-version 1.34.4`" in captured.err


@pytest.mark.parametrize(
    ("words", "telling"),
    [
        (["path", "kubeadm"], "no program is called 'kubeadm'"),
        (["fetch", "kubectl", "--kubernetes-version", "1.29.6"], "1.30 is the oldest"),
        (["list", "--kubernetes-version", "newest"], "'newest' is not of the form 1.2.3"),
    ],
)
def test_bad_input(cache: Cache, words: list[str], telling: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", *words]) == 2
    assert telling in capsys.readouterr().err


def test_fetch_of_an_existing_program_prints_its_path(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["binaries", "fetch", "etcd"]) == 0
    captured = capsys.readouterr()
    assert captured.out.split() == ["etcd", "3.6.8", str(cache.program_path("etcd", "3.6.8"))]
    assert captured.err == ""


def test_prune_lists_programs_before_it_deletes_them(cache: Cache, capsys: pytest.CaptureFixture[str]) -> None:
    old = cache.program_path("etcd", "3.5.0")
    assert run_command(["binaries", "prune", "--dry-run"]) == 0
    assert capsys.readouterr().out == f"{old}\n"
    assert old.exists()
    assert run_command(["binaries", "prune"]) == 0
    assert "1 programs removed" in capsys.readouterr().err
    assert not old.exists()
    assert os.access(cache.program_path("etcd", "3.6.8"), os.X_OK)
