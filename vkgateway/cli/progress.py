"""Progress of long commands: a spinner on a terminal, timestamped lines elsewhere."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from vkgateway.kube.clock import SYSTEM_CLOCK, Clock

if TYPE_CHECKING:
    from rich.status import Status


@contextlib.contextmanager
def explain_interruption(text: str) -> Iterator[None]:
    """Print a text if the block is interrupted: what continues without the command, and how to follow or undo it."""
    try:
        yield
    except asyncio.CancelledError:
        click.echo(text, err=True)
        raise


class Progress:
    """Progress on standard error; standard output is for results.

    Call the object with the current step; `done` prints a finished step as a permanent line.
    """

    def __init__(self, *, quiet: bool = False, clock: Clock = SYSTEM_CLOCK) -> None:
        self._quiet = quiet
        self._clock = clock
        self._started = clock.monotonic()
        self._text = ""
        self._status: Status | None = None

    @property
    def elapsed_seconds(self) -> float:
        """Seconds since the start."""
        return self._clock.monotonic() - self._started

    def __enter__(self) -> Progress:
        if not self._quiet and sys.stderr.isatty():
            from rich.console import Console

            self._status = Console(stderr=True).status("")
            self._status.start()
        return self

    def __exit__(self, *_: object) -> None:
        if self._status is not None:
            self._status.stop()
            self._status = None

    def __call__(self, text: str) -> None:
        """Show the current step; repeated texts are ignored."""
        if self._quiet or text == self._text:
            return
        self._text = text
        if self._status is not None:
            from rich.markup import escape

            self._status.update(escape(text))
        else:
            self._print_line(text)

    def done(self, text: str) -> None:
        """Print a finished step as a permanent line."""
        if not self._quiet:
            self._print_line(text)

    def _print_line(self, text: str) -> None:
        line = f"[{self.elapsed_seconds:6.1f}s] {text}"
        if self._status is not None:
            self._status.console.print(line, markup=False, highlight=False)
        else:
            click.echo(line, err=True)
