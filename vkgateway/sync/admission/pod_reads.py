"""Which pods of a tenant must be read as a whole before the arbiter can judge their gangs."""

from __future__ import annotations

from vkgateway.sync.admission.companion_objects import CompanionObjects
from vkgateway.sync.views.ownership import Key


class PodReads:
    """The pods of one tenant that were not read yet, or must be read again."""

    def __init__(self, companions: CompanionObjects) -> None:
        self._companions = companions
        self.unread: set[Key] = set()
        """Pods that are still to be read."""
        self.outdated: set[str] = set()
        """Pods, by uid, of which a companion object, a pool or a volume changed since they were read."""

    @property
    def is_settled(self) -> bool:
        """Whether everything read of pods is current, including their companion objects."""
        return self._companions.is_complete and not self.outdated
