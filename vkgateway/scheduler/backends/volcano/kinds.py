"""Volcano's kinds in a compute cluster."""

from __future__ import annotations

from typing import Final

from vkgateway.api.types import VOLCANO
from vkgateway.kube.resources import PRIORITY_CLASSES, Resource
from vkgateway.scheduler.backends.kinds import ModeKinds
from vkgateway.scheduler.backends.volcano.mode import PodGroupView, decode_pod_group, read_attempt
from vkgateway.scheduler.backends.volcano.names import API_VERSION

PREFIX: Final = f"apis/{API_VERSION}"
POD_GROUPS: Final = Resource(PREFIX, "podgroups", "PodGroup")
QUEUES: Final = Resource(PREFIX, "queues", "Queue", namespaced=False)

VOLCANO_KINDS: Final[ModeKinds[PodGroupView]] = ModeKinds(
    mode=VOLCANO,
    title="Volcano",
    attempts=POD_GROUPS,
    namespace="",
    pool_kinds=(QUEUES, PRIORITY_CLASSES),
    decode=decode_pod_group,
    read=read_attempt,
)
