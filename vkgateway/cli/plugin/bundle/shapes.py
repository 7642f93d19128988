"""Redaction by allow-list: a shape names the fields of an object that a bundle contains; the rest is left out (pure).

A shape is a mapping of field names to shapes, a list with the shape of its items, or a function that returns what of a
value may be shown.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any, Final

from vkgateway.api.names import GROUP

Shape = Mapping[str, "Shape"] | list["Shape"] | Callable[[Any], Any]

REMOVED: Final = "(removed)"
_NAME: Final = re.compile(r"[A-Za-z0-9._:/@+*%,-]{0,253}")
_PHRASE: Final = re.compile(r"[A-Za-z0-9 ._:/@+#~(){}-]{0,253}")
_LABEL_PREFIXES: Final = (
    "app.kubernetes.io/",
    "batch.kubernetes.io/",
    "beta.kubernetes.io/",
    "jobset.sigs.k8s.io/",
    "kubernetes.io/",
    "kueue.x-k8s.io/",
    "leaderworkerset.sigs.k8s.io/",
    "network.vkgateway.io/",
    "node.kubernetes.io/",
    "nvidia.com/",
    "platform.vkgateway.io/",
    "ray.io/",
    "scheduling.k8s.io/",
    "scheduling.volcano.sh/",
    "scheduling.x-k8s.io/",
    "topology.kubernetes.io/",
    "training.kubeflow.org/",
    f"{GROUP}/",
)
"""Prefixes of labels whose values are names, numbers or states."""
_LABELS: Final = frozenset({"controller-uid", "job-name", "pod-template-hash", "type"})
_ANNOTATION_PREFIXES: Final = (f"{GROUP}/", "kueue.x-k8s.io/", "scheduling.k8s.io/", "scheduling.volcano.sh/")
_UNSAFE_ANNOTATIONS: Final = (f"{GROUP}/accepted-spec", f"{GROUP}/log-tails", f"{GROUP}/forwarded", f"{GROUP}/field-")
"""Beginnings of annotations that hold parts of other objects."""


def apply_shape(shape: Shape, value: Any) -> Any:
    """Return what of a value the shape allows. A value of another type than the shape's is removed."""
    if callable(shape):
        return shape(value)
    if isinstance(shape, list):
        return [apply_shape(shape[0], item) for item in value] if isinstance(value, list | tuple) else REMOVED
    if not isinstance(value, Mapping):
        return REMOVED if value is not None else None
    return {key: apply_shape(inner, value[key]) for key, inner in shape.items() if key in value}


def plain(value: Any) -> Any:
    """Return a name, number, quantity, time or state; other values are removed."""
    return _matching(value, _NAME)


def phrase(value: Any) -> Any:
    """Return a version or another short text with spaces; other values are removed."""
    return _matching(value, _PHRASE)


def _matching(value: Any, form: re.Pattern[str]) -> Any:
    if value is None or isinstance(value, bool | int | float):
        return value
    return value if isinstance(value, str) and form.fullmatch(value) else REMOVED


def plain_list(value: Any) -> Any:
    """Return a list of names."""
    return [plain(item) for item in value] if isinstance(value, list | tuple) else REMOVED


def plain_map(value: Any) -> Any:
    """Return a map of names, like resources and node selectors."""
    if not isinstance(value, Mapping):
        return REMOVED if value is not None else None
    return {str(key): plain(item) for key, item in value.items()}


def safe_labels(value: Any) -> Any:
    """Return labels; the values of unknown labels are removed."""
    return _chosen(value, lambda key: key in _LABELS or key.startswith(_LABEL_PREFIXES))


def safe_annotations(value: Any) -> Any:
    """Return annotations; only those that say how a pod is scheduled have their values."""
    return _chosen(value, lambda key: key.startswith(_ANNOTATION_PREFIXES) and not key.startswith(_UNSAFE_ANNOTATIONS))


def keys_only(value: Any) -> Any:
    """Return the keys of a map, without values."""
    return dict.fromkeys(map(str, value), REMOVED) if isinstance(value, Mapping) else REMOVED


def _chosen(value: Any, is_safe: Callable[[str], bool]) -> Any:
    if not isinstance(value, Mapping):
        return REMOVED if value is not None else None
    return {str(key): plain(item) if is_safe(str(key)) else REMOVED for key, item in value.items()}


def image(value: Any) -> Any:
    """Return the name of an image; one with credentials or parameters in it is removed."""
    is_name = isinstance(value, str) and re.fullmatch(r"[\w.:/-]+(@sha256:[0-9a-f]{64})?", value)
    return value if is_name else REMOVED


def host_of_url(value: Any) -> Any:
    """Return scheme, host and port of a URL: the path, the query and the user may be secret."""
    found = re.match(r"([a-z]+)://(?:[^/@]*@)?([A-Za-z0-9.:\[\]-]+)", str(value))
    return f"{found[1]}://{found[2]}/{REMOVED}" if found else REMOVED
