"""What a compute cluster's refusal is about: the object, or something of the cluster's own that may be mended."""

from __future__ import annotations

from typing import Final

from vkgateway.kube import errors
from vkgateway.translate.sanitizer import Sanitizer

_OUR_RIGHTS: Final = tuple(f"cannot {verb} resource" for verb in ("create", "update", "patch"))
_STARTING: Final = "not yet ready to handle request"


def lacks_rights(error: Exception) -> bool:
    """Whether the gateway may not do such a thing there, whatever the object."""
    return isinstance(error, errors.Forbidden) and any(words in error.server_message for words in _OUR_RIGHTS)


def is_starting(error: Exception) -> bool:
    """Whether the server just started: its admission plugins know nothing yet."""
    return isinstance(error, errors.Forbidden) and _STARTING in error.server_message


def is_object_refused(error: Exception) -> bool:
    """Whether it is the object that is not taken; quotas, which count others too, are left to the caller."""
    refused = isinstance(error, (errors.Invalid, errors.BadRequest, errors.Forbidden))
    return refused and not lacks_rights(error) and not is_starting(error)


def refusal_message(error: errors.ApiError, cleaner: Sanitizer) -> str:
    """What the compute cluster said of an object, for its tenant."""
    if lacks_rights(error):
        return "the compute cluster does not let the gateway do that now"
    return f"the compute cluster refused it: {cleaner.sanitize_text(error.server_message)}"
