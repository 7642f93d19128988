"""In which version a tenant's API server has the kind of an object beside a pod."""

from __future__ import annotations

import contextlib

import msgspec

from vkgateway.kube import errors
from vkgateway.kube.apply import Discovery
from vkgateway.kube.client import Client
from vkgateway.kube.resources import Resource
from vkgateway.translate.gangs import Reference


class _Version(msgspec.Struct, rename="camel"):
    group_version: str = ""


class _Group(msgspec.Struct, rename="camel"):
    preferred_version: _Version = msgspec.field(default_factory=_Version)
    versions: list[_Version] = []

    def liked(self) -> list[str]:
        """Its versions, the preferred one first."""
        return list(
            filter(None, dict.fromkeys(each.group_version for each in (self.preferred_version, *self.versions)))
        )


async def kind_of(reference: Reference, client: Client, discovery: Discovery) -> Resource | None:
    """The kind in the version that the server likes best of those that have it; None where none of the group has.

    Not all versions of a group have all of its kinds: `scheduling.k8s.io` prefers v1, and has PodGroups in v1alpha2.

    Raises:
        ApiError: the server does not know the group, or does not answer.
        DecodeError: what it answers is no API group.
    """
    group = msgspec.json.decode(await client.request("GET", f"/apis/{reference.group}"), type=_Group)
    for version in group.liked():
        with contextlib.suppress(errors.NotFound):
            return await discovery.resource(version, reference.kind)
    return None
