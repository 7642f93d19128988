"""An external scheduler as a scheduling mode."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from typing import Final

from vkgateway.api.names import SCHEDULING_MODE
from vkgateway.api.objects import Object
from vkgateway.api.scheduling import SchedulerMarks, queue_name
from vkgateway.api.templates import BAND_GUARANTEED, BAND_LOW, render_template, render_templates
from vkgateway.api.types import EXTERNAL
from vkgateway.api.types import Pool as PoolSpec
from vkgateway.scheduler.backends.attempt import Attempt
from vkgateway.scheduler.backends.external.implied import ImpliedAttempts
from vkgateway.scheduler.backends.gang_split import GangSplitter, min_members
from vkgateway.scheduler.backends.mode import ModeInput, Request
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.core.snapshot import Gang, Pod, Pool, Quota

_RETRY_SECONDS: Final = 10.0


class ExternalMode:
    """Implementation of `SchedulingMode`. The scheduler has no object of the gateway: it gets pods."""

    max_pod_sets = sys.maxsize
    retry_seconds = _RETRY_SECONDS
    takes_slots_back = False

    def marks(self, request: Request, _pod: Pod) -> SchedulerMarks:
        """See `SchedulingMode`. The scheduler gives no notice, and deletes pods with the grace of their creation."""
        scheduling, values = request.spec.scheduling, _template_values(request)
        return SchedulerMarks(
            scheduler_name=scheduling.scheduler_name,
            priority_class=render_template(scheduling.priority_class_name, values),
            grace=int(request.gang.grace),
            labels=render_templates(scheduling.pod_labels, values),
            annotations={**render_templates(scheduling.pod_annotations, values), SCHEDULING_MODE: EXTERNAL},
        )

    def implied_attempts(self, given: ModeInput, splitter: GangSplitter) -> Mapping[str, Attempt]:
        """See `SchedulingMode`."""
        return ImpliedAttempts(given, splitter, retry_seconds=self.retry_seconds).by_name()

    def attempt_object(self, request: Request) -> Object:
        """See `SchedulingMode`. No gang waits for one."""
        raise NotImplementedError(f"{request.name}: an external scheduler has no object for a gang")

    def digest(self, _request: Request) -> str:
        """See `SchedulingMode`. An implied attempt always asks for the current pods."""
        return ""

    def levels(self, _pool: Pool, _spec: PoolSpec) -> tuple[str, ...]:
        """See `SchedulingMode`."""
        return ()

    def pool_objects(
        self, _pool: Pool, _spec: PoolSpec, _quotas: Sequence[Quota], _gangs: Sequence[Gang]
    ) -> list[Object]:
        """See `SchedulingMode`. The queues belong to the administrator."""
        return []


def _template_values(request: Request) -> dict[str, str]:
    """Return the value of each placeholder. Surplus belongs to its gang, too."""
    gang, spec = request.gang, request.spec
    return {
        "tenant": gang.tenant,
        "pool": spec.name,
        "queue": queue_name(spec.scheduling, tenant=gang.tenant, pool=spec.name),
        "gang": attempt_name(gang.tenant, gang.id),
        "minimum": str(min_members(gang)),
        "size": str(max(len(gang.pods), min_members(gang))),
        "band": BAND_LOW if request.is_borrowed else BAND_GUARANTEED,
    }
