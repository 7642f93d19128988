"""Confirmation of commands that delete data."""

from __future__ import annotations

import sys

import click

from vkgateway.api.errors import InputError

yes_option = click.option("-y", "--yes", is_flag=True, help="Do not ask for confirmation.")


def confirm_deletion(what: str, *, yes: bool) -> None:
    """Return if the deletion is confirmed: with `yes`, or by a person at a terminal.

    Raises:
        InputError: neither is the case; input from elsewhere is no answer to the question.
        click.Abort: the person declined.
    """
    if yes:
        return
    if not sys.stdin.isatty():
        raise InputError(
            f"this would delete {what}; the input is not a terminal, so the command cannot ask you",
            hint="Add --yes to confirm it.",
        )
    click.confirm(f"Delete {what}? This cannot be undone", abort=True)
