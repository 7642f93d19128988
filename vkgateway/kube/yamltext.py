"""YAML parsing with libyaml if PyYAML includes it: ten times as fast as the parser in Python."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import yaml

_LOADER: Final = getattr(yaml, "CSafeLoader", yaml.SafeLoader)


def load(text: str) -> Any:
    """Return the only document of a text. Raises yaml.YAMLError."""
    return yaml.load(text, Loader=_LOADER)  # noqa: S506 - both are safe loaders


def load_all(text: str) -> Iterator[Any]:
    """Return an iterator that parses the documents of a text. Raises yaml.YAMLError."""
    return iter(yaml.load_all(text, Loader=_LOADER))
