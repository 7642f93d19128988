"""Commands that delete data ask a person, or need --yes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import click
import pytest

from vkgateway.api.errors import InputError
from vkgateway.cli import main
from vkgateway.cli.options import confirm_deletion


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def answers(monkeypatch: pytest.MonkeyPatch, stdin: io.StringIO) -> Callable[..., None]:
    monkeypatch.setattr("sys.stdin", stdin)
    return confirm_deletion


def test_a_person_is_asked(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    answers(monkeypatch, Terminal("y\n"))("the data", yes=False)
    assert "Delete the data? This cannot be undone" in capsys.readouterr().out
    with pytest.raises(click.Abort):
        answers(monkeypatch, Terminal("n\n"))("the data", yes=False)


def test_other_input_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(InputError, match="this would delete the data"):
        answers(monkeypatch, io.StringIO("y\n"))("the data", yes=False)
    answers(monkeypatch, io.StringIO("n\n"))("the data", yes=True)


def test_purge_needs_a_confirmation(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "kept").touch()
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    assert main.run_command(["down", "--purge", "--data-dir", str(tmp_path)]) == 2
    assert "Add --yes to confirm it" in capsys.readouterr().err
    assert (tmp_path / "kept").exists()
