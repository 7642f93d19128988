"""The package of the embedded platform, which may not be installed. Only names lead there, never an import."""

from __future__ import annotations

import importlib
import importlib.util
from typing import Any, Final

from vkgateway.api.errors import UnavailableError
from vkgateway.version import __version__

PACKAGE: Final = "vkgateway_platform"
DISTRIBUTION: Final = "vkgateway-platform"


def is_installed() -> bool:
    """Return whether the package can be imported."""
    return importlib.util.find_spec(PACKAGE) is not None


def require(*, needed_for: str) -> None:
    """Check that the package is installed.

    Raises:
        UnavailableError: it is not; the hint says how to install it.
    """
    if not is_installed():
        raise UnavailableError(
            f"{needed_for} needs the embedded platform, whose package {DISTRIBUTION} is not installed",
            hint=f"pip install {DISTRIBUTION}=={__version__}",
        )


def load(target: str) -> Any:
    """Import what `MODULE:ATTRIBUTE` names."""
    module, _, attribute = target.partition(":")
    return getattr(importlib.import_module(module), attribute)
