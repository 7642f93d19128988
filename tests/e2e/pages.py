"""Documentation pages run word for word: shell blocks run in order, and their output must match.

A block marked `sh` is run, also in a list. A block marked `text` right after it is its standard output, or its standard
error if it has no other output, such as the progress of a command. In the output, a line `...` matches any lines, `...`
within a line matches anything, and repeated blanks count as one. A duration matches any duration, and an address any
address.
"""

from __future__ import annotations

import os
import re
import subprocess
import textwrap
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path

_BLOCK = re.compile(r"^ *```(\w*)\n(.*?)^ *```$", re.MULTILINE | re.DOTALL)
_VARYING = (
    (re.compile(r"\b\d+(?:\.\d+)?(?:ms|[smhd])\b"), "<duration>"),
    (re.compile(r"\b\d+(?:\.\d+){3}(?::\d+)?\b"), "<address>"),
)
_MARK = "--- end of block"
_OF_MAKE = frozenset({"MAKEFLAGS", "MAKELEVEL", "MFLAGS"})
"""Variables through which a `make` on a page would take part in the `make` that runs the tests."""


@dataclass(frozen=True)
class Block:
    """Commands of a page, and their expected output (empty: not shown)."""

    line: int
    commands: str
    shown: str


def read_blocks(text: str) -> list[Block]:
    """Return the blocks that a page runs."""
    found: list[Block] = []
    for match in _BLOCK.finditer(text):
        language, content = match[1], textwrap.dedent(match[2])
        if language == "sh":
            found.append(Block(text.count("\n", 0, match.start()) + 1, content, ""))
        elif language == "text" and found:
            found[-1] = Block(found[-1].line, found[-1].commands, content)
    return found


def is_same_output(output: str, expected: str) -> bool:
    """Return whether a command's output matches the page."""
    lines = [_normalize(line) for line in expected.splitlines() if line.strip()]
    patterns = [
        r"(?:.*\n)*" if line == "..." else ".*".join(map(re.escape, line.split("..."))) + r"\n" for line in lines
    ]
    text = "".join(f"{_normalize(line)}\n" for line in output.splitlines() if line.strip())
    return re.fullmatch("".join(patterns), text) is not None


def run_page(
    page: Path,
    *,
    folder: Path,
    env: Mapping[str, str],
    timeout: float,
    before: str = "",
    left_out: Iterable[str] = (),
) -> None:
    """Run a page's blocks in one shell, in `folder`. The first failure or different output fails the test.

    `before` holds commands that the page takes for granted. Blocks with one of the texts of `left_out` are not run.
    """
    steps = read_blocks(page.read_text())
    unknown = [text for text in left_out if not any(text in step.commands for step in steps)]
    assert not unknown, f"{page.name} has no block with {unknown}"
    steps = [step for step in steps if not any(text in step.commands for text in left_out)]
    script = "set -euo pipefail\n" + (f"{{\n{before}\n}} >/dev/null\n" if before else "")
    script += "".join(f"{step.commands}echo '{_MARK}' | tee /dev/stderr\n" for step in steps)
    done = subprocess.run(
        ["bash", "-c", script],
        cwd=folder,
        env={name: value for name, value in os.environ.items() if name not in _OF_MAKE} | dict(env),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=timeout,
        check=False,
    )
    outputs, errors = (stream.split(f"{_MARK}\n") for stream in (done.stdout, done.stderr))
    places = [f"{page.name}, line {step.line}:\n{step.commands}" for step in steps]
    assert len(outputs) > len(steps), f"{places[len(outputs) - 1]}\nfailed:\n{outputs[-1]}\n{done.stderr[-4000:]}"
    for place, step, output, error in zip(places, steps, outputs, errors, strict=False):
        said = output or error
        assert not step.shown or is_same_output(said, step.shown), f"{place}\nsaid:\n{said}\nnot:\n{step.shown}"


def _normalize(line: str) -> str:
    for pattern, name in _VARYING:
        line = pattern.sub(name, line)
    return re.sub(r"\s+", " ", line.strip())
