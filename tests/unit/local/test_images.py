"""Images for the real node: loaded, listed, and refused without a node."""

from __future__ import annotations

import tarfile
from pathlib import Path

import pytest

from tests.fakes.report import Silent
from vkgateway.api.errors import InputError, UnavailableError
from vkgateway.cli.main import run_command
from vkgateway_platform.embedded import images, record
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.realnode.host import ToolError
from vkgateway_platform.embedded.record import PlatformRecord


def test_load_without_a_platform_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "web.tar").touch()
    assert run_command(["image", "load", str(tmp_path / "web.tar"), "--data-dir", str(tmp_path / "none")]) == 3
    assert "there is no platform" in capsys.readouterr().err


def test_missing_archive_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["image", "load", str(tmp_path / "web.tar")]) == 2
    assert "web.tar" in capsys.readouterr().err


def fake_containerd(monkeypatch: pytest.MonkeyPatch, refusal: str) -> None:
    """Install a containerd that has two images and refuses all archives with this error."""

    class FakeContainerd:
        def load_archive(self, archive: Path) -> None:
            raise ToolError(f"`ctr images import {archive}` failed: {refusal}")

        def list_images(self) -> list[str]:
            return ["web:1", "base:2"]

    async def find_containerd(*_: object, **__: object) -> FakeContainerd:
        return FakeContainerd()

    monkeypatch.setattr(images, "find_containerd", find_containerd)


async def test_file_that_is_not_an_archive_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_containerd(monkeypatch, "ctr: unexpected EOF")
    (tmp_path / "notes.txt").write_text("no archive")
    with pytest.raises(InputError, match=r"notes\.txt is not an image archive$") as caught:
        await images.load_images(tmp_path, tmp_path / "notes.txt", report=Silent())
    assert "docker save" in caught.value.hint


async def test_error_of_containerd_is_reported(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    fake_containerd(monkeypatch, "ctr: unrecognized image format")
    tarfile.open(tmp_path / "web.tar", "w").close()
    with pytest.raises(ToolError, match="unrecognized image format"):
        await images.load_images(tmp_path, tmp_path / "web.tar", report=Silent())


@pytest.mark.parametrize(
    ("form", "printed"),
    [("table", "IMAGE\nbase:2\nweb:1\n"), ("name", "base:2\nweb:1\n"), ("yaml", "- base:2\n- web:1\n")],
)
def test_images_are_listed_for_people_and_programs(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], form: str, printed: str
) -> None:
    fake_containerd(monkeypatch, "")
    assert run_command(["image", "list", "-o", form, "--data-dir", str(tmp_path)]) == 0
    assert capsys.readouterr().out == printed


async def test_error_says_why_there_is_no_real_node(tmp_path: Path) -> None:
    record.save_record(PlatformPaths(tmp_path).record_path, PlatformRecord(real_node_why_not="no root"))
    with pytest.raises(UnavailableError, match="no real node: no root"):
        await images.list_images(tmp_path, report=Silent())


async def test_error_says_how_to_start_the_real_node(tmp_path: Path) -> None:
    record.save_record(PlatformPaths(tmp_path).record_path, PlatformRecord(number=255, interface="vkg255"))
    with pytest.raises(UnavailableError, match="the real node does not run") as caught:
        await images.list_images(tmp_path, report=Silent())
    assert "vkgateway up" in caught.value.hint
