"""Removal of host names, compute namespaces, host paths and UIDs from messages of compute clusters."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from vkgateway.api.names import COMPUTE_ROOT_CA, NAMESPACE_ANNOTATION, TENANT_ROOT_CA, UID_ANNOTATION
from vkgateway.api.objects import Object

_HOST_PATH: Final = re.compile(
    r"/(?:var/lib|var/run|run|etc)/(?:kubelet|containerd|docker|crio|cni|kubernetes)\b[^\s\"',:;)]*"
)
_HIDDEN_PATH: Final = "(a path of the node)"
_VOLUME_NAME: Final = re.compile(r"\bpvc-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""Compute volume with a name that a provisioner generated."""
_WORD: Final = re.compile(r"[^\s\"',:;)]+")
"""Word that may be a path of a volume's data on a node."""
_HIDDEN_VOLUME: Final = "(a volume)"
_OBJECT_REFERENCE: Final = re.compile(r"(?<![\w./-])([a-z][a-z0-9-]*+)/[a-z0-9][a-z0-9.-]*+")
"""Object in a namespace.

Messages contain text that tenants wrote, such as images, of any length: no pattern here may backtrack over the same
text.
"""
_HIDDEN_OBJECT: Final = "(an object elsewhere)"


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """Replacement of names that are not part of a longer word, and of paths of a node's directories."""

    replacements: tuple[tuple[str, str], ...]

    @classmethod
    def for_pod(cls, compute_pod: Object, *, hide: Iterable[str], node_name: str, node_ip: str = "") -> "Sanitizer":
        """Return the sanitizer for messages about one compute pod: its node, namespace and UID become the tenant's.

        `hide` holds more node names. The host's addresses become `node_ip`, if it is set.
        """
        metadata = compute_pod.get("metadata") or {}
        status = compute_pod.get("status") or {}
        annotations = metadata.get("annotations") or {}
        pairs = [
            (metadata.get("namespace"), annotations.get(NAMESPACE_ANNOTATION)),
            (metadata.get("uid"), annotations.get(UID_ANNOTATION)),
            ((compute_pod.get("spec") or {}).get("nodeName"), node_name),
            (status.get("nominatedNodeName"), node_name),
            (status.get("hostIP"), node_ip),
            *((entry.get("ip"), node_ip) for entry in status.get("hostIPs") or ()),
            *((name, node_name) for name in hide),
            (COMPUTE_ROOT_CA, TENANT_ROOT_CA),
        ]
        return cls(tuple((old, new) for old, new in pairs if old and new and old != new))

    def sanitize_text(self, text: str) -> str:
        """Return the text without hidden parts, or the identical text if it has none."""
        for old, new in self.replacements:
            if old in text:
                text = _standalone_pattern(old).sub(lambda _, new=new: new, text)  # type: ignore[misc]
        if "--" in text:
            text = _OBJECT_REFERENCE.sub(_hide_object, text)
        if "/run/" in text or "/var/" in text or "/etc/" in text:
            text = _HOST_PATH.sub(_HIDDEN_PATH, text)
        if "pvc-" in text:
            text = _WORD.sub(_hide_volume, text)
        return text

    def sanitize_json(self, value: Any) -> Any:
        """Return a JSON value with all texts in it sanitized."""
        if isinstance(value, str):
            return self.sanitize_text(value)
        if isinstance(value, dict):
            return {key: self.sanitize_json(inner) for key, inner in value.items()}
        return [self.sanitize_json(inner) for inner in value] if isinstance(value, list) else value


def _hide_object(match: re.Match[str]) -> str:
    """Return the replacement for an object of a compute namespace, where `--` separates tenant and namespace."""
    namespace = match[1]
    return _HIDDEN_OBJECT if "--" in namespace and not namespace.endswith("-") else match[0]


def _hide_volume(match: re.Match[str]) -> str:
    """Return the replacement for a compute volume or the path of its data on a node, up to the end of the word."""
    word = match[0]
    found = _VOLUME_NAME.search(word)
    if found is None:
        return word
    path = word.find("/", 0, found.start())
    return f"{word[: found.start()]}{_HIDDEN_VOLUME}" if path < 0 else f"{word[:path]}{_HIDDEN_PATH}"


@lru_cache(maxsize=4096)
def _standalone_pattern(name: str) -> re.Pattern[str]:
    """Return a pattern for a name that is not part of a longer one. Names contain letters, digits, dashes and dots."""
    return re.compile(rf"(?<![A-Za-z0-9.-]){re.escape(name)}(?![A-Za-z0-9-]|\.[A-Za-z0-9])")
