"""Users and roles of an etcd cluster."""

from __future__ import annotations

from vkgateway.planes.etcd.connection import EtcdConnection
from vkgateway.planes.etcd.pb import etcd_pb2 as pb
from vkgateway.planes.etcd.ranges import KeyRange


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
        """Delete a user."""
        await self._connection.call("Auth/UserDelete", pb.AuthUserDeleteRequest(name=name))

    async def roles_of(self, user: str) -> list[str]:
        """Return the roles of a user."""
        request = pb.AuthUserGetRequest(name=user)
        return list((await self._connection.call("Auth/UserGet", request, pb.AuthUserGetResponse)).roles)

    async def grant_role(self, user: str, *, role: str) -> None:
        """Grant a role to a user; no error if the user has it."""
        await self._connection.call("Auth/UserGrantRole", pb.AuthUserGrantRoleRequest(user=user, role=role))

    async def revoke_role(self, user: str, *, role: str) -> None:
        """Revoke a role from a user."""
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
