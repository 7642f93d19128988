"""The tenant pod's own containers, apart from those that a compute cluster adds to the compute pod."""

from __future__ import annotations

import re
from collections.abc import Container
from typing import Final


class _Everything:
    def __contains__(self, _name: object) -> bool:
        return True


EVERY_CONTAINER: Final[Container[str]] = _Everything()

_LISTED: Final = re.compile(r"containers with \w+ status: \[([^\]]*)\]")
"""How kubelets name containers in the messages of conditions."""
_FIELD_PATH: Final = re.compile(r"spec\.(?:initContainers|containers)\{([^}]*)\}")
"""How kubelets name the container that an event is about."""
_OTHERS: Final = "a container that the compute cluster added is not ready"


def own_containers_text(text: str, containers: Container[str]) -> str:
    """Return a condition's message that names no other containers than these."""
    found = _LISTED.search(text)
    names = found[1].split() if found is not None else []
    own = [name for name in names if name in containers]
    if found is None or own == names:
        return text
    return f"{text[: found.start(1)]}{' '.join(own)}{text[found.end(1) :]}" if own else _OTHERS


def is_about_another_container(field_path: str, containers: Container[str]) -> bool:
    """Return whether an event with this field path is about a container that is none of these."""
    found = _FIELD_PATH.fullmatch(field_path)
    return found is not None and found[1] not in containers
