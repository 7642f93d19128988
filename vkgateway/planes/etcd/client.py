"""A small etcd v3 client: keys, users and roles, and maintenance."""

from __future__ import annotations

import contextlib
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, Self

from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd.connection import LONGEST_CALL_SECONDS, EtcdConnection
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdCompacted, EtcdError, EtcdUnavailable
from vkgateway.planes.etcd.pb import etcd_pb2 as pb
from vkgateway.planes.etcd.ranges import KeyRange


class EtcdClient:
    """Client of an etcd cluster, one part for each of etcd's services. `timeout` is that of a call, in seconds."""

    def __init__(
        self, endpoints: Sequence[str], *, tls: ClientTls, timeout: float = 10.0, gate: WriteGate | None = None
    ) -> None:
        self.connection = EtcdConnection(endpoints, tls=tls, timeout=timeout, gate=gate)
        self.keys = EtcdKeys(self.connection)
        self.auth = EtcdAuth(self.connection)
        self.maintenance = EtcdMaintenance(self.connection)

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.connection.close()


_MIN_PAGE_KEYS: Final = 32
"""Keys per page for values of up to 1.5 MiB each within gRPC's message size."""
_MAX_PAGE_KEYS: Final = 1000
_PAGE_BYTES: Final = 8 << 20
_DELETE_BATCH: Final = 200
"""Keys per delete request. etcd reads the values to list the keys, and a value may have 1.5 MiB."""


class EtcdKeys:
    """Keys and their values. Every call may be repeated, and raises `EtcdError` if it fails."""

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def count_range(self, keys: KeyRange) -> int:
        """Return the number of keys in a range."""
        request = pb.RangeRequest(key=keys.start, range_end=keys.end, count_only=True)
        return int((await self._connection.call("KV/Range", request, pb.RangeResponse)).count)

    async def measure_range(self, keys: KeyRange) -> int:
        """Return the total bytes of keys and values in a range, without earlier revisions. Reads the whole range."""
        size, start, limit = 0, keys.start, _MIN_PAGE_KEYS
        while True:
            request = pb.RangeRequest(key=start, range_end=keys.end, limit=limit)
            try:
                answer = await self._connection.call("KV/Range", request, pb.RangeResponse)
            except EtcdError as error:
                if error.transient or limit == _MIN_PAGE_KEYS:
                    raise
                limit = _MIN_PAGE_KEYS  # the next values are larger
                continue
            page = sum(len(pair.key) + len(pair.value) for pair in answer.kvs)
            size += page
            if not answer.more:
                return size
            start = answer.kvs[-1].key + b"\0"
            # Each request makes etcd count all remaining keys, so use as few as possible.
            limit = max(_MIN_PAGE_KEYS, min(_MAX_PAGE_KEYS, _PAGE_BYTES * len(answer.kvs) // page))

    async def put(self, key: str, value: bytes) -> None:
        """Write one key."""
        await self._connection.call("KV/Put", pb.PutRequest(key=key.encode(), value=value), pb.PutResponse)

    async def delete_range(self, keys: KeyRange) -> int:
        """Delete every key in a range and return how many there were.

        Deletes in batches: etcd serves no other request during a delete, and aborts requests that take seconds.
        """
        start, deleted, more = keys.start, 0, True
        while more:
            page = pb.RangeRequest(key=start, range_end=keys.end, limit=_DELETE_BATCH, keys_only=True)
            found = await self._connection.call("KV/Range", page, pb.RangeResponse)
            more = bool(found.more)
            end = found.kvs[-1].key + b"\0" if more else keys.end
            request = pb.DeleteRangeRequest(key=start, range_end=end)
            deleted += int((await self._connection.call("KV/DeleteRange", request, pb.DeleteRangeResponse)).deleted)
            start = end
        return deleted


class EtcdAuth:
    """Users, their roles, and the key ranges of the roles. Every call raises `EtcdError` if it fails.

    All calls may be repeated: a second `add` raises `EtcdExists`.
    """

    def __init__(self, connection: EtcdConnection) -> None:
        self._connection = connection

    async def is_enabled(self) -> bool:
        """Return whether etcd enforces users and roles."""
        answer = await self._connection.call("Auth/AuthStatus", pb.AuthStatusRequest(), pb.AuthStatusResponse)
        return bool(answer.enabled)

    async def enable(self) -> None:
        """Enforce users and roles. Requires a user `root` with the role `root`."""
        await self._connection.call("Auth/AuthEnable", pb.AuthEnableRequest())

    async def list_users(self) -> list[str]:
        """Return the names of all users."""
        return list((await self._connection.call("Auth/UserList", pb.Empty(), pb.AuthUserListResponse)).users)

    async def add_user(self, name: str) -> None:
        """Add a user without a password, identified by the common name of its client certificate."""
        options = pb.UserAddOptions(no_password=True)
        await self._connection.call("Auth/UserAdd", pb.AuthUserAddRequest(name=name, options=options))

    async def delete_user(self, name: str) -> None:
        await self._connection.call("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))

    async def roles_of(self, user: str) -> list[str]:
        request = pb.AuthUserGetRequest(name=user)
        return list((await self._connection.call("Auth/UserGet", request, pb.AuthUserGetResponse)).roles)

    async def grant_role(self, user: str, *, role: str) -> None:
        """Grant a role to a user; no error if the user has it."""
        await self._connection.call("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))

    async def revoke_role(self, user: str, *, role: str) -> None:
        await self._connection.call("Auth/UserRevokeRole", pb.AuthUserRevokeRoleRequest(name=user, role=role))

    async def add_role(self, name: str) -> None:
        """Add a role without permissions."""
        await self._connection.call("Auth/RoleAdd", pb.AuthRoleAddRequest(name=name))

    async def delete_role(self, name: str) -> None:
        """Delete a role and revoke it from all users."""
        await self._connection.call("Auth/RoleDelete", pb.AuthRoleDeleteRequest(role=name))

    async def ranges_of(self, role: str) -> dict[KeyRange, bool]:
        """Return the ranges that a role may read, each with whether it may also write."""
        request = pb.AuthRoleGetRequest(role=role)
        answer = await self._connection.call("Auth/RoleGet", request, pb.AuthRoleGetResponse)
        return {
            KeyRange(bytes(permission.key), bytes(permission.range_end)): permission.perm_type != pb.Permission.READ
            for permission in answer.perm
        }

    async def grant_range(self, role: str, *, keys: KeyRange, write: bool = True) -> None:
        """Grant a role read access to a range; `write` sets whether it may also write."""
        kind = pb.Permission.READWRITE if write else pb.Permission.READ
        permission = pb.Permission(perm_type=kind, key=keys.start, range_end=keys.end)
        request = pb.AuthRoleGrantPermissionRequest(name=role, perm=permission)
        await self._connection.call("Auth/RoleGrantPermission", request)

    async def revoke_range(self, role: str, *, keys: KeyRange) -> None:
        """Revoke a role's access to a range."""
        request = pb.AuthRoleRevokePermissionRequest(role=role, key=keys.start, range_end=keys.end)
        await self._connection.call("Auth/RoleRevokePermission", request)


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
