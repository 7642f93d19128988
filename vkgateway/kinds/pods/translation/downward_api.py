"""Downward API fields that show the tenant's values instead of those of the compute pod."""

import hashlib
import re
from collections.abc import Mapping
from typing import Final

from vkgateway.api.names import NAMESPACE_ANNOTATION, UID_ANNOTATION, is_forbidden_annotation
from vkgateway.api.objects import Object
from vkgateway.kinds.metadata import is_renamed
from vkgateway.kinds.pods.policy.plugins import is_tenant_only_key

LABELS_ANNOTATION: Final = "vkgateway.io/labels"
"""Annotation of a compute pod whose volumes read all labels: the tenant pod's labels, as a kubelet would write them."""
ANNOTATIONS_ANNOTATION: Final = "vkgateway.io/annotations"
"""Annotation of a compute pod whose volumes read all annotations: the tenant pod's, as a kubelet would write them."""

FIELD_ANNOTATION: Final = "vkgateway.io/field-"
"""Prefix of compute pod annotations that hold one label or annotation which is not forwarded."""

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


def volume_annotation(path: str, *, tenant_only: tuple[str, ...]) -> str | None:
    """Return the annotation of the compute pod that holds the tenant's value of a field, or None if both are the same.

    `tenant_only` are the prefixes of labels and annotations that are not forwarded.
    """
    known = _IDENTITY_FIELDS.get(path) or _MAP_FIELDS.get(path)
    if known is not None:
        return known
    if not is_tenant_only(path, tenant_only=tenant_only):
        return None
    return f"{FIELD_ANNOTATION}{hashlib.sha256(path.encode()).hexdigest()[:12]}"


def is_derived(annotation: str) -> bool:
    """Return whether an annotation exists for a pod's volumes only."""
    return annotation not in _IDENTITY_FIELDS.values()


def derived_annotations(pod: Object, *, tenant_only: tuple[str, ...]) -> dict[str, str]:
    """Return the annotations that the compute pod's downward API volumes read, with the tenant's values."""
    labels, annotations = pod["metadata"].get("labels") or {}, pod["metadata"].get("annotations") or {}
    found: dict[str, str] = {}
    for volume in (pod.get("spec") or {}).get("volumes") or ():
        projected = (volume.get("projected") or {}).get("sources") or ()
        for source in (volume.get("downwardAPI"), *(one.get("downwardAPI") for one in projected)):
            for item in (source or {}).get("items") or ():
                path = (item.get("fieldRef") or {}).get("fieldPath", "")
                annotation = volume_annotation(path, tenant_only=tenant_only)
                if annotation is not None and is_derived(annotation):
                    found[annotation] = tenant_value(path, labels=labels, annotations=annotations)
    return found


def annotation_path(annotation: str) -> str:
    """Return the field path of an annotation, as the downward API writes it."""
    return f"metadata.annotations['{annotation}']"


def is_tenant_only(path: str, *, tenant_only: tuple[str, ...]) -> bool:
    """Return whether a field path names a label or annotation that a compute pod does not carry under the same key.

    Such a key is reserved for the platform, has a prefix of `tenant_only`, or is renamed.
    """
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        return False
    key = match[2]
    if match[1] == "labels":
        return is_renamed(key, tenant_only)
    return is_tenant_only_key(key, tenant_only) or is_forbidden_annotation(key)


def tenant_value(path: str, *, labels: Mapping[str, str], annotations: Mapping[str, str]) -> str:
    """Return the tenant's labels, annotations or one of them, as a kubelet writes them. A missing one is empty."""
    if path in _MAP_FIELDS:
        return render_map(labels if path == "metadata.labels" else annotations)
    match = _SUBSCRIPT.fullmatch(path)
    if match is None:
        return ""
    return (labels if match[1] == "labels" else annotations).get(match[2], "")


def render_map(values: Mapping[str, str]) -> str:
    """Return labels or annotations as a kubelet writes them to a volume: sorted lines of `key="value"`, quoted as in
    Go.
    """
    return "\n".join(f"{key}={quote_go(values[key])}" for key in sorted(values))


def quote_go(text: str) -> str:
    """Return a text quoted as Go's `strconv.Quote` does."""
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
