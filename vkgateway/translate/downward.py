"""The downward API: which fields of a pod show the tenant's values instead of the compute pod's, and how."""

import re
from collections.abc import Mapping
from typing import Final

from vkgateway.model.names import NAMESPACE_ANNOTATION, UID_ANNOTATION, is_forbidden_annotation, is_reserved
from vkgateway.translate.context import SCHEDULERS_PREFIXES

LABELS_ANNOTATION: Final = "vkgateway.io/labels"
"""On compute pods whose volumes ask for all labels: the tenant's, as a kubelet would write them."""
ANNOTATIONS_ANNOTATION: Final = "vkgateway.io/annotations"
"""On compute pods whose volumes ask for all annotations: the tenant's, as a kubelet would write them."""

_VOLUME_PATHS: Final = {
    "metadata.namespace": NAMESPACE_ANNOTATION,
    "metadata.uid": UID_ANNOTATION,
    "metadata.labels": LABELS_ANNOTATION,
    "metadata.annotations": ANNOTATIONS_ANNOTATION,
}
_SUBSCRIPT = re.compile(r"metadata\.(labels|annotations)\['(.*)'\]")
_ESCAPES: Final = {
    "\a": r"\a",
    "\b": r"\b",
    "\f": r"\f",
    "\n": r"\n",
    "\r": r"\r",
    "\t": r"\t",
    "\v": r"\v",
    "\\": r"\\",
    '"': r"\"",
}


def volume_annotation(path: str) -> str | None:
    """Annotation of the compute pod that holds the tenant's value of a field, or None if the field is the same."""
    return _VOLUME_PATHS.get(path)


def annotation_path(annotation: str) -> str:
    """Field path of an annotation, as the downward API writes it."""
    return f"metadata.annotations['{annotation}']"


def is_reserved_path(path: str) -> bool:
    """Tell whether a field path names one of vkgateway's own labels or annotations, other than those for workloads."""
    match = _SUBSCRIPT.fullmatch(path)
    return match is not None and (is_reserved if match[1] == "labels" else is_forbidden_annotation)(match[2])


def is_schedulers_path(path: str) -> bool:
    """Tell whether a field path names a label or annotation that is for schedulers, and stays above."""
    match = _SUBSCRIPT.fullmatch(path)
    return match is not None and match[2].startswith(SCHEDULERS_PREFIXES)


def own_value(path: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The tenant's own value of a label or annotation that does not go down; empty where it has none."""
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        return ""
    return (labels if match[1] == "labels" else annotations).get(match[2], "")


def render_map(values: Mapping[str, str]) -> str:
    """Write labels or annotations as a kubelet does in a volume: sorted lines of `key="value"`, quoted as in Go."""
    return "\n".join(f"{key}={quote(values[key])}" for key in sorted(values))


def quote(text: str) -> str:
    """Quote a text as Go's `strconv.Quote` does."""
    if text.isascii() and text.isprintable() and '"' not in text and "\\" not in text:
        return f'"{text}"'
    return '"' + "".join(map(_quote_rune, text)) + '"'


def _quote_rune(rune: str) -> str:
    if rune in _ESCAPES:
        return _ESCAPES[rune]
    if rune.isprintable():
        return rune
    code = ord(rune)
    if code < 0x20 or code == 0x7F:
        return f"\\x{code:02x}"
    return f"\\u{code:04x}" if code < 0x10000 else f"\\U{code:08x}"
