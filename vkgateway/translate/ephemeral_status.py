"""Ephemeral containers that do not go down: above they are shown as waiting, so that who waits for one is told why."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from vkgateway.model.objects import Object

NOT_FORWARDED: Final = "ChangeNotForwarded"
"""Reason of such a container, and of the event about any change that cannot be made below."""

_STATUSES: Final = "ephemeralContainerStatuses"


def waiting_status(containers: Iterable[Object], why: Mapping[str, str], *, tenant_status: Object) -> Object | None:
    """Merge patch that shows those of the pod's ephemeral containers as waiting that `why` has a reason for.

    `why` is by name. None where they are shown so already. `kubectl debug` prints the message of the container that it
    waits for.
    """
    standing: Sequence[Object] = tenant_status.get(_STATUSES) or []
    shown = [_waiting_container_status(one, why[one["name"]]) for one in containers if one["name"] in why]
    wanted = [*(one for one in standing if one["name"] not in why), *shown]
    return None if wanted == standing else {_STATUSES: wanted}


def add_waiting_statuses(statuses: Sequence[Object] | None, tenant_status: Object) -> list[Object]:
    """The statuses of ephemeral containers from below, with those that wait above and are not known there."""
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
