"""Classification of refusals by a compute cluster: is the object refused, or can the cause be fixed in the cluster?"""

from __future__ import annotations

from typing import Final

from vkgateway.kinds.sanitizer import Sanitizer
from vkgateway.kube import errors

_OUR_RIGHTS: Final = tuple(f"cannot {verb} resource" for verb in ("create", "update", "patch"))
_STARTING: Final = "not yet ready to handle request"


def lacks_rights(error: Exception) -> bool:
    """Return whether the gateway lacks permission for a request, whatever the object."""
    return isinstance(error, errors.Forbidden) and any(words in error.server_message for words in _OUR_RIGHTS)


def is_starting(error: Exception) -> bool:
    """Return whether the server has just started, so that its admission plugins are not ready."""
    return isinstance(error, errors.Forbidden) and _STARTING in error.server_message


def is_object_refused(error: Exception) -> bool:
    """Return whether the object itself is refused. Callers handle quotas, which also count other objects."""
    refused = isinstance(error, (errors.Invalid, errors.BadRequest, errors.Forbidden))
    return refused and not lacks_rights(error) and not is_starting(error)


def refusal_message(error: errors.ApiError, cleaner: Sanitizer) -> str:
    """Return the compute cluster's refusal of an object as a message for its tenant."""
    if lacks_rights(error):
        return "the compute cluster does not let the gateway do that now"
    return f"the compute cluster refused it: {cleaner.sanitize_text(error.server_message)}"
