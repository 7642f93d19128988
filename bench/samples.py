"""Samples in a page of metrics, in the text format of Prometheus."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

_SAMPLE: Final = re.compile(r"(\w+)\{(.*)\} (\S+)")
_LABEL: Final = re.compile(r'(\w+)="((?:[^"\\]|\\.)*)"')


def read_samples(text: str, prefix: str) -> Iterator[tuple[str, dict[str, str], float]]:
    """Yield name, labels and value of each sample with labels whose name begins with `prefix`, without buckets."""
    for line in text.splitlines():
        if line.startswith(prefix) and "_bucket{" not in line and (sample := _SAMPLE.fullmatch(line)) is not None:
            name, labels, value = sample.groups()
            yield name, dict(_LABEL.findall(labels)), float(value)
