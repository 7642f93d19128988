"""Conformance cases: read from the suite's own list, chosen by name, handed out in portions."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources

import msgspec
import yaml

from vkgateway.model.errors import InputError

SUBSET_FILE = "subset.txt"
"""Names of the cases that the project's own tests run, one a line; lines that begin with `#` are comments."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One conformance case."""

    name: str
    """Its full text, by which the suite finds it."""
    file: str = ""
    """The source file that it stands in, below Kubernetes' own tree."""
    release: str = ""
    """Releases in which it became part of conformance, or changed: `v1.9, v1.18`."""

    @property
    def is_serial(self) -> bool:
        """Whether nothing else may run beside it."""
        return "[Serial]" in self.name or "[Disruptive]" in self.name

    @property
    def owner_sig(self) -> str:
        """The group of people who answer for it: `sig-node`."""
        found = re.match(r"\[(sig-[a-z-]+)\]", self.name)
        return found[1] if found else ""


class _ListedCase(msgspec.Struct):
    codename: str
    file: str = ""
    release: str | float = ""


def parse_cases(text: str) -> tuple[Case, ...]:
    """The cases in what `e2e.test --list-conformance-tests` prints.

    Raises:
        InputError: it is no such list.
    """
    try:
        listed = msgspec.convert(yaml.safe_load(text), list[_ListedCase])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InputError(f"the suite's list of conformance cases cannot be read: {error}") from error
    found = {one.codename: Case(name=one.codename, file=one.file, release=str(one.release)) for one in listed}
    return tuple(found[name] for name in sorted(found))


def select_cases(cases: Iterable[Case], *, focus: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Case, ...]:
    """The cases whose name fits one of `focus` (none: all) and none of `skip`; both are regular expressions.

    Raises:
        InputError: one is no regular expression.
    """
    wanted, unwanted = [_compile_pattern(text) for text in focus], [_compile_pattern(text) for text in skip]
    return tuple(
        case
        for case in cases
        if (not wanted or any(pattern.search(case.name) for pattern in wanted))
        and not any(pattern.search(case.name) for pattern in unwanted)
    )


def _compile_pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except re.error as error:
        raise InputError(f"{text!r} is no regular expression: {error}") from error


def load_subset() -> frozenset[str]:
    """Names of the fixed subset that the project's own tests run."""
    text = resources.files("vkgateway.conformance").joinpath(SUBSET_FILE).read_text(encoding="utf-8")
    return frozenset(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def split_batches(cases: Sequence[Case], *, size: int) -> list[tuple[Case, ...]]:
    """The cases in portions of at most `size`."""
    return [tuple(cases[start : start + size]) for start in range(0, len(cases), size)]


def focus_pattern(cases: Iterable[Case]) -> str:
    """The regular expression (Go's) by which the suite finds just these; it sees its own title before each name."""
    return " (" + "|".join(_go_quoted(case.name) for case in cases) + ")$"


def _go_quoted(text: str) -> str:
    """Escape as Go's `regexp.QuoteMeta` does: Python's own way also escapes blanks, which Go refuses."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)
