"""Conformance cases: parsed from the suite's list, selected by name, split into batches."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources

import msgspec
import yaml

from vkgateway.api.errors import InputError

SUBSET_FILE = "subset.txt"
"""Names of the cases that the project's own tests run, one per line; lines that start with `#` are comments."""


class Case(msgspec.Struct, frozen=True, kw_only=True):
    """One conformance case."""

    name: str
    """Full text of the case, by which the suite selects it."""
    file: str = ""
    """Source file in Kubernetes' tree."""
    release: str = ""
    """Releases in which the case was added to conformance or changed: `v1.9, v1.18`."""

    @property
    def is_serial(self) -> bool:
        """Whether no other case may run at the same time."""
        return "[Serial]" in self.name or "[Disruptive]" in self.name

    @property
    def owner_sig(self) -> str:
        """Special interest group that owns the case: `sig-node`."""
        found = re.match(r"\[(sig-[a-z-]+)\]", self.name)
        return found[1] if found else ""


class _ListedCase(msgspec.Struct):
    codename: str
    file: str = ""
    release: str | float = ""


def parse_cases(text: str) -> tuple[Case, ...]:
    """Parse the output of `e2e.test --list-conformance-tests`.

    Raises:
        InputError: the text is not such a list.
    """
    try:
        listed = msgspec.convert(yaml.safe_load(text), list[_ListedCase])
    except (yaml.YAMLError, msgspec.ValidationError) as error:
        raise InputError(f"the suite's list of conformance cases cannot be read: {error}") from error
    found = {case.codename: Case(name=case.codename, file=case.file, release=str(case.release)) for case in listed}
    return tuple(found[name] for name in sorted(found))


def select_cases(cases: Iterable[Case], *, focus: Sequence[str] = (), skip: Sequence[str] = ()) -> tuple[Case, ...]:
    """Return the cases whose name matches one of `focus` (none: all) and none of `skip`; both are regular expressions.

    Raises:
        InputError: a regular expression is invalid.
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
        raise InputError(f"{text!r} is not a regular expression: {error}") from error


def load_subset() -> frozenset[str]:
    """Return the names of the fixed subset that the project's own tests run."""
    text = resources.files("vkgateway_platform.conformance").joinpath(SUBSET_FILE).read_text(encoding="utf-8")
    return frozenset(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))


def split_batches(cases: Sequence[Case], *, size: int) -> list[tuple[Case, ...]]:
    """Split the cases into batches of at most `size`."""
    return [tuple(cases[start : start + size]) for start in range(0, len(cases), size)]


def focus_pattern(cases: Iterable[Case]) -> str:
    """Return a regular expression (Go's) that matches only these cases; the suite prefixes each name with its title."""
    return " (" + "|".join(_go_quoted(case.name) for case in cases) + ")$"


def _go_quoted(text: str) -> str:
    """Escape like Go's `regexp.QuoteMeta`; Python's `re.escape` also escapes blanks, which Go rejects."""
    return re.sub(r"([\\.+*?()|\[\]{}^$])", r"\\\1", text)
