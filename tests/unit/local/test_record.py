"""The platform's record: read back unchanged, or refused with one sentence."""

import json
from pathlib import Path

import pytest

from vkgateway.api.errors import ConflictError, InputError
from vkgateway_platform.embedded.record import LAYOUT_VERSION, PlatformRecord, load_record, save_record


def test_no_file_means_no_platform(tmp_path: Path) -> None:
    assert load_record(tmp_path / "platform.json") is None


def test_what_is_saved_is_read_back(tmp_path: Path) -> None:
    record = PlatformRecord(number=7, interface="vkg7", address="10.213.7.1", ports={"etcd": 2379}, real_node="no")
    save_record(tmp_path / "platform.json", record)
    assert load_record(tmp_path / "platform.json") == record


def test_the_file_is_private(tmp_path: Path) -> None:
    save_record(tmp_path / "platform.json", PlatformRecord())
    assert (tmp_path / "platform.json").stat().st_mode & 0o777 == 0o600


@pytest.mark.parametrize("content", ["", "{", "[]", "{}", '{"layout": "one"}', '{"layout": 1, "ports": 5}'])
def test_damaged_file_is_an_error_with_the_way_out(tmp_path: Path, content: str) -> None:
    path = tmp_path / "platform.json"
    path.write_text(content)
    with pytest.raises(InputError, match=r"platform\.json is damaged") as caught:
        load_record(path)
    assert f"vkgateway down --purge --data-dir {tmp_path}" in caught.value.hint


def test_newer_layout_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "platform.json"
    path.write_text(json.dumps({"layout": LAYOUT_VERSION + 1, "ports": "in a form that nobody knows yet"}))
    with pytest.raises(ConflictError, match=f"has layout {LAYOUT_VERSION + 1}") as caught:
        load_record(path)
    assert "newer vkgateway" in caught.value.hint
