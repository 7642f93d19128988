"""Status of ephemeral containers that are not forwarded: waiting, with the reason."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vkgateway.api.objects import Object

NOT_FORWARDED: Final = "ChangeNotForwarded"
"""Reason of such a status, and of the event about a change that the compute cluster cannot make."""

_STATUSES: Final = "ephemeralContainerStatuses"


def waiting_status(containers: Iterable[Object], reasons: Mapping[str, str], *, tenant_status: Object) -> Object | None:
    """Return the merge patch that shows ephemeral containers as waiting, or None if it changes nothing.

    `reasons` holds a reason by container name. `kubectl debug` prints the message of the container that it waits for.
    """
    standing: Sequence[Object] = tenant_status.get(_STATUSES) or []
    shown = [_waiting_container_status(one, reasons[one["name"]]) for one in containers if one["name"] in reasons]
    wanted = [*(one for one in standing if one["name"] not in reasons), *shown]
    return None if wanted == standing else {_STATUSES: wanted}


def add_waiting_statuses(statuses: Sequence[Object] | None, tenant_status: Object) -> list[Object]:
    """Return the statuses of a compute pod's ephemeral containers, plus waiting ones that only the tenant pod has."""
    known = list(statuses or ())
    names = {one["name"] for one in known}
    return [
        *known,
        *(one for one in tenant_status.get(_STATUSES) or () if one["name"] not in names and _is_not_forwarded(one)),
    ]


def _waiting_container_status(container: Object, message: str) -> Object:
    return {
        "name": container["name"],
        "image": container.get("image") or "",
        "imageID": "",
        "lastState": {},
        "ready": False,
        "restartCount": 0,
        "state": {"waiting": {"reason": NOT_FORWARDED, "message": message}},
    }


def _is_not_forwarded(status: Object) -> bool:
    return ((status.get("state") or {}).get("waiting") or {}).get("reason") == NOT_FORWARDED
