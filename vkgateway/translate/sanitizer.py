"""Messages from below, cleaned of what no tenant may see: names of hosts and namespaces, paths of hosts, uids."""

import re
from collections.abc import Iterable
from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final

from vkgateway.model.names import COMPUTE_ROOT_CA, NAMESPACE_ANNOTATION, TENANT_ROOT_CA, UID_ANNOTATION
from vkgateway.model.objects import Object

_HOST_PATH: Final = re.compile(
    r"/(?:var/lib|var/run|run|etc)/(?:kubelet|containerd|docker|crio|cni|kubernetes)\b[^\s\"',:;)]*"
)
_HIDDEN_PATH: Final = "(a path of the node)"
_VOLUME_NAME: Final = re.compile(r"\bpvc-[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}\b")
"""A compute volume by the name that provisioners give it."""
_WORD: Final = re.compile(r"[^\s\"',:;)]+")
"""What may be a path of a volume's data on a node."""
_HIDDEN_VOLUME: Final = "(a volume)"
_OBJECT_REFERENCE: Final = re.compile(r"(?<![\w./-])([a-z][a-z0-9-]*+)/[a-z0-9][a-z0-9.-]*+")
"""An object in a namespace. Messages hold what tenants wrote (images, say), of any length: no pattern here may go over
the same text twice.
"""
_HIDDEN_OBJECT: Final = "(an object elsewhere)"


@dataclass(frozen=True, slots=True)
class Sanitizer:
    """Replaces names by others wherever they stand alone in a text, and paths of a node's own folders."""

    replacements: tuple[tuple[str, str], ...]

    @classmethod
    def for_pod(cls, compute_pod: Object, *, hide: Iterable[str], node_name: str, node_ip: str = "") -> "Sanitizer":
        """For messages about one compute pod: its node, namespace and uid become the tenant's; `hide` the node.

        The addresses of its host become `node_ip`, where there is one.
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

    def sanitize_names(self, text: str) -> str:
        """The text with the names replaced and all else as it is: for what a container itself has written."""
        for old, new in self.replacements:
            if old in text:
                text = _standalone_pattern(old).sub(lambda _, new=new: new, text)  # type: ignore[misc]
        return text

    def sanitize_text(self, text: str) -> str:
        """The text without what is to be hidden; the very same text if nothing of it is in it."""
        text = self.sanitize_names(text)
        if "--" in text:
            text = _OBJECT_REFERENCE.sub(_hide_object, text)
        if "/run/" in text or "/var/" in text or "/etc/" in text:
            text = _HOST_PATH.sub(_HIDDEN_PATH, text)
        if "pvc-" in text:
            text = _WORD.sub(_hide_volume, text)
        return text

    def sanitize_json(self, value: Any) -> Any:
        """A value of JSON with all texts in it clean."""
        if isinstance(value, str):
            return self.sanitize_text(value)
        if isinstance(value, dict):
            return {key: self.sanitize_json(inner) for key, inner in value.items()}
        return [self.sanitize_json(inner) for inner in value] if isinstance(value, list) else value


def _hide_object(match: re.Match[str]) -> str:
    """Hides an object of a compute namespace, where `--` separates tenant and namespace."""
    namespace = match[1]
    return _HIDDEN_OBJECT if "--" in namespace and not namespace.endswith("-") else match[0]


def _hide_volume(match: re.Match[str]) -> str:
    """Hides a compute volume, or the path of its data on a node, to the word's end."""
    word = match[0]
    found = _VOLUME_NAME.search(word)
    if found is None:
        return word
    path = word.find("/", 0, found.start())
    return f"{word[: found.start()]}{_HIDDEN_VOLUME}" if path < 0 else f"{word[:path]}{_HIDDEN_PATH}"


@lru_cache(maxsize=4096)
def _standalone_pattern(name: str) -> re.Pattern[str]:
    """A name that is no part of a longer one; host names and namespaces are of letters, digits, dashes and dots."""
    return re.compile(rf"(?<![A-Za-z0-9.-]){re.escape(name)}(?![A-Za-z0-9-]|\.[A-Za-z0-9])")
