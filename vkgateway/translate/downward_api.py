"""The downward API: which fields of a pod show the tenant's values instead of the compute pod's, and how."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from vkgateway.model.names import NAMESPACE_ANNOTATION, UID_ANNOTATION, is_forbidden_annotation
from vkgateway.model.objects import Object
from vkgateway.translate.labels import is_renamed

LABELS_ANNOTATION: Final = "vkgateway.io/labels"
"""On compute pods whose volumes ask for all labels: the tenant's, as a kubelet would write them."""
ANNOTATIONS_ANNOTATION: Final = "vkgateway.io/annotations"
"""On compute pods whose volumes ask for all annotations: the tenant's, as a kubelet would write them."""

FIELD_ANNOTATION: Final = "vkgateway.io/field-"
"""How annotations of compute pods begin that hold one label or annotation which stays above."""

_IDENTITY_FIELDS: Final = {"metadata.namespace": NAMESPACE_ANNOTATION, "metadata.uid": UID_ANNOTATION}
_MAP_FIELDS: Final = {"metadata.labels": LABELS_ANNOTATION, "metadata.annotations": ANNOTATIONS_ANNOTATION}
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


def volume_annotation(path: str, *, staying: tuple[str, ...]) -> str | None:
    """Annotation of the compute pod that holds the tenant's value of a field, or None if the field is the same.

    `staying` are the prefixes of labels and annotations that stay above.
    """
    known = _IDENTITY_FIELDS.get(path) or _MAP_FIELDS.get(path)
    if known is not None:
        return known
    if not is_tenant_only(path, staying=staying):
        return None
    return f"{FIELD_ANNOTATION}{hashlib.sha256(path.encode()).hexdigest()[:12]}"


def is_derived(annotation: str) -> bool:
    """Tell whether an annotation is made for a pod's volumes, rather than one that every compute pod has."""
    return annotation not in _IDENTITY_FIELDS.values()


def derived_annotations(pod: Object, *, staying: tuple[str, ...]) -> dict[str, str]:
    """The annotations that a tenant pod's downward API volumes read below, each with the field that it holds."""
    found: dict[str, str] = {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        projected = (volume.get("projected") or {}).get("sources") or ()
        for source in (volume.get("downwardAPI"), *(one.get("downwardAPI") for one in projected)):
            for item in (source or {}).get("items") or ():
                path = (item.get("fieldRef") or {}).get("fieldPath", "")
                annotation = volume_annotation(path, staying=staying)
                if annotation is not None and is_derived(annotation):
                    found[annotation] = path
    return found


def annotation_path(annotation: str) -> str:
    """Field path of an annotation, as the downward API writes it."""
    return f"metadata.annotations['{annotation}']"


def is_tenant_only(path: str, *, staying: tuple[str, ...]) -> bool:
    """Tell whether a field path names a label or annotation that a compute pod does not carry under the same key.

    That is one of ours (but for those for workloads), one with a prefix that stays, or a label that is renamed.
    """
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        return False
    key = match[2]
    if match[1] == "labels":
        return is_renamed(key, staying)
    return key.startswith(staying) or is_forbidden_annotation(key)


def tenant_value(path: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """The tenant's own labels, annotations, or one of them, as a kubelet tells them; empty where there is none."""
    if path in _MAP_FIELDS:
        return render_map(labels if path == "metadata.labels" else annotations)
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        return ""
    return (labels if match[1] == "labels" else annotations).get(match[2], "")


def render_map(values: Mapping[str, str]) -> str:
    """Write labels or annotations as a kubelet does in a volume: sorted lines of `key="value"`, quoted as in Go."""
    return "\n".join(f"{key}={quote_go(values[key])}" for key in sorted(values))


def quote_go(text: str) -> str:
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
