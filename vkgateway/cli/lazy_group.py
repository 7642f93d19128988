"""Click group with lazily imported commands, for a fast start."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

from vkgateway import platform_package


class LazyGroup(click.Group):
    """Group that imports each command at its first use."""

    def __init__(self, *args: Any, lazy: Mapping[str, str], **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._targets = lazy

    def list_commands(self, ctx: click.Context) -> list[str]:
        """Return the names of the installed commands in the order of the table, which is by importance."""
        hidden = not platform_package.is_installed()
        names = [name for name, target in self._targets.items() if not (hidden and _is_of_platform(target))]
        return [*names, *super().list_commands(ctx)]

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Import and return the command of that name; None if there is none.

        Raises:
            UnavailableError: it is a command of the embedded platform, whose package is not installed.
        """
        target = self._targets.get(cmd_name)
        if target is None:
            return super().get_command(ctx, cmd_name)
        if _is_of_platform(target):
            platform_package.require(needed_for=f"the command {cmd_name!r}")
        command = platform_package.load(target)
        if not isinstance(command, click.Command):
            raise TypeError(f"{target} is not a click command")
        return command


def _is_of_platform(target: str) -> bool:
    return target.startswith(f"{platform_package.PACKAGE}.")
