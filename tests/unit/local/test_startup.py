"""A platform's choices: a failed write leaves nothing on the machine."""

import errno
from pathlib import Path

import pytest

from vkgateway_platform.embedded import choices, network, startup
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.choices import MachineState
from vkgateway_platform.embedded.options import UpOptions
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.record import PlatformRecord


@pytest.mark.parametrize("new", [True, False])
def test_interface_is_removed_if_the_record_cannot_be_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, new: bool
) -> None:
    made: list[str] = []

    def full(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(choices, "detect_machine", lambda **_: MachineState())
    monkeypatch.setattr(choices, "choose_ports", lambda record, *_, **__: record)
    monkeypatch.setattr(network, "ensure_interface", lambda _name, *, address, owner: made.append(owner))
    monkeypatch.setattr(network, "close_ranges", lambda _number: None)
    monkeypatch.setattr(network, "remove_interfaces", made.remove)
    monkeypatch.setattr(records, "save_record", full)
    with pytest.raises(OSError, match="No space left"):
        startup._save_choices(PlatformPaths(tmp_path), PlatformRecord(), UpOptions(), others=frozenset(), new=new)
    assert made == ([] if new else [network.interface_alias(tmp_path)])
