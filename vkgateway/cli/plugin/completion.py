"""Shell completion through kubectl: the program `kubectl_complete-vkgateway`.

kubectl passes the words after `kubectl vkgateway`, the last of which is incomplete, and reads one value a line and a
directive of cobra (https://github.com/spf13/cobra/blob/main/site/content/completions/_index.md).
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from typing import Final

import click

_NO_FILES: Final = ":4"
"""Directive: the shell offers no files besides the values."""
_FILES: Final = ":0"


def main(argv: Sequence[str] | None = None) -> None:
    """Run the program `kubectl_complete-vkgateway`: print the completions of the last word."""
    words = list(sys.argv[1:] if argv is None else argv)
    for line in complete_words(words[:-1], words[-1] if words else ""):
        click.echo(line)


def complete_words(words: Sequence[str], incomplete: str) -> list[str]:
    """Return the lines for kubectl: values with their descriptions, and the directive."""
    from click.shell_completion import ShellComplete

    from vkgateway.cli.plugin.main import plugin

    option, equals, begun = incomplete.partition("=")
    if equals and option.startswith("--"):
        found = ShellComplete(plugin, {}, "kubectl vkgateway", "").get_completions([*words, option], begun)
        prefix = f"{option}="
    else:
        found = ShellComplete(plugin, {}, "kubectl vkgateway", "").get_completions(list(words), incomplete)
        prefix = ""
    if any(item.type != "plain" for item in found):
        return [_FILES]
    lines = [f"{prefix}{item.value}\t{item.help}" if item.help else f"{prefix}{item.value}" for item in found]
    return [*lines, _NO_FILES]
