"""Maintenance of an etcd cluster: status of its members, compaction, defragmentation and space alarms."""

from __future__ import annotations

import contextlib
from dataclasses import dataclass

from vkgateway.planes.etcd.connection import LONGEST_CALL_SECONDS, EtcdConnection
from vkgateway.planes.etcd.errors import EtcdCompacted, EtcdUnavailable
from vkgateway.planes.etcd.pb import etcd_pb2 as pb


@dataclass(frozen=True, slots=True)
class MemberStatus:
    """State of an etcd member: version, file size, bytes in use and maximum size.

    `quota` is 0 for etcd before 3.6, which does not report it. `alarms` are sentences; the one about space contains
    NOSPACE.
    """

    version: str
    size: int
    size_in_use: int
    quota: int
    revision: int
    alarms: tuple[str, ...]

    @property
    def is_full(self) -> bool:
        """Return whether etcd refuses writes until its space alarm is cleared."""
        return any("NOSPACE" in alarm for alarm in self.alarms)


class EtcdMaintenance:
    """Status and space of the members. Every call may be repeated, and raises `EtcdError` if it fails."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def member_status(self) -> MemberStatus:
        """Return the state of the member that answers."""
        answer = await self._connection.call("Maintenance/Status", pb.StatusRequest(), pb.StatusResponse)
        return MemberStatus(
            version=answer.version,
            size=answer.db_size,
            size_in_use=answer.db_size_in_use,
            quota=answer.db_size_quota,
            revision=answer.header.revision,
            alarms=tuple(answer.errors),
        )

    async def compact(self, revision: int) -> None:
        """Discard all revisions before `revision`, and return when etcd has freed the space."""
        request = pb.CompactionRequest(revision=revision, physical=True)
        with contextlib.suppress(EtcdCompacted):
            await self._connection.call("KV/Compact", request, pb.CompactionResponse, timeout=LONGEST_CALL_SECONDS)

    async def defragment(self) -> None:
        """Make every reachable member rewrite its file without free pages; a member serves no request meanwhile."""
        for target in self._connection.targets:
            with contextlib.suppress(EtcdUnavailable):
                await self._connection.call_at(
                    target, "Maintenance/Defragment", pb.Empty(), pb.Empty, timeout=LONGEST_CALL_SECONDS
                )

    async def allow_writes(self) -> None:
        """Clear the space alarms of all members."""
        found = await self._connection.call("Maintenance/Alarm", pb.AlarmRequest(alarm=pb.NOSPACE), pb.AlarmResponse)
        for alarm in found.alarms:
            over = pb.AlarmRequest(action=pb.AlarmRequest.DEACTIVATE, member_id=alarm.member_id, alarm=pb.NOSPACE)
            await self._connection.call("Maintenance/Alarm", over, pb.AlarmResponse)
