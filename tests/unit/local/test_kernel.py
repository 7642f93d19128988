"""Kernel limits are raised only if they are too low."""

from __future__ import annotations

from pathlib import Path

from vkgateway_platform.embedded.kernel import ENOUGH_INSTANCES, ensure_inotify


class Lines:
    def __init__(self) -> None:
        self.said: list[str] = []

    def __call__(self, text: str) -> None:
        self.said.append(text)

    def done(self, text: str) -> None:
        self.said.append(text)


def test_root_raises_a_low_limit(tmp_path: Path) -> None:
    setting, lines = tmp_path / "instances", Lines()
    setting.write_text("128\n")

    ensure_inotify(lines, setting=setting, root=True)

    assert setting.read_text() == str(ENOUGH_INSTANCES)
    assert "128" in lines.said[0]


def test_other_users_get_instructions(tmp_path: Path) -> None:
    setting, lines = tmp_path / "instances", Lines()
    setting.write_text("128\n")

    ensure_inotify(lines, setting=setting, root=False)

    assert setting.read_text() == "128\n"
    assert "sysctl" in lines.said[0]


def test_high_limit_is_kept_silently(tmp_path: Path) -> None:
    setting, lines = tmp_path / "instances", Lines()
    setting.write_text("65536\n")

    ensure_inotify(lines, setting=setting, root=True)

    assert setting.read_text() == "65536\n"
    assert lines.said == []
