"""Lookup of the version in which a tenant's API server serves the kind of a companion object."""

from __future__ import annotations

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import CRDS, Resource
from vkgateway.scheduler.gangs import Kind


class _Version(msgspec.Struct, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version = msgspec.field(default_factory=_Version)
    versions: list[_Version] = []

    def preferred_versions(self) -> list[str]:
        """Return the group's versions, the preferred one first."""
        return list(
            filter(None, dict.fromkeys(each.group_version for each in (self.preferred_version, *self.versions)))
        )


async def find_kind(kind: Kind, client: Client, discovery: Discovery) -> Resource | None:
    """Return the kind in the first version of the server's preference that has it; None if discovery does not have the
    kind.

    Not all versions of a group have all of its kinds: `scheduling.k8s.io` prefers v1, and has PodGroups in v1alpha2.

    Raises:
        ApiError: the server does not answer, or not for a version that it lists.
        DecodeError: the answer is no API group.
    """
    try:
        answer = await client.request("GET", f"/apis/{kind.group}")
    except errors.NotFound:
        return None
    lost: errors.NotFound | None = None
    for version in msgspec.json.decode(answer, type=_Group).preferred_versions():
        try:
            found = await discovery.find_resource(version, kind.kind)
        except errors.NotFound as error:
            lost = error
            continue
        if found is not None:
            return found
    if lost is not None:
        raise lost
    return None


async def served_kind(kind: Kind, client: Client) -> Resource | None:
    """Return the same, where None means that the server certainly does not serve the kind.

    Discovery alone is not certain: it lacks a kind for a moment after its CustomResourceDefinition was created, and a
    proxy may answer 404, too. So the server must also confirm that no definition exists.

    Raises:
        ApiError: the server does not answer, or will serve the kind in a moment.
        DecodeError: the answer is no API group.
    """
    found = await find_kind(kind, client, Discovery(client))
    if found is not None:
        return found
    name = f"{kind.plural}.{kind.group}"
    try:
        await client.get(CRDS, name)
    except errors.NotFound as error:
        if error.reason != "NotFound":
            raise
        return None
    raise errors.ServerError(f"CustomResourceDefinition {name} at {client.name} is not served yet")
