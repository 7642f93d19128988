"""The range of a tenant's Services in compute clusters, as a ServiceCIDR: addresses are the same above and below."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any, Final

import msgspec
import structlog

from vkgateway.kube import errors, resources
from vkgateway.model.errors import UnavailableError
from vkgateway.model.names import TENANT_LABEL
from vkgateway.model.objects import Condition, Meta, is_condition_true
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.refusals import is_starting
from vkgateway.translate.context import TenantContext

log = structlog.get_logger(__name__)

_REFUSED_FOR: Final = 60.0
"""Seconds after which a compute cluster that does not have the range is asked again."""
_READY_WITHIN: Final = 5.0
"""Seconds in which a compute cluster makes a new range ready; it takes a tenth of a second."""
_POLL_SECONDS: Final = 0.05

# What API servers say of an address that cannot be had (pkg/registry/core/service/ipallocator).
_TAKEN: Final = "already allocated"
_NO_RANGE: Final = ("does not match the current range", "not in the valid range", "does not contain")


class _Spec(msgspec.Struct):
    cidrs: tuple[str, ...] = ()


class _Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class ServiceCidrView(msgspec.Struct, kw_only=True):
    """A ServiceCIDR: ranges from which a cluster's Services have their addresses (networking.k8s.io/v1, KEP-1880)."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_usable(self) -> bool:
        """Whether Services may have addresses of it."""
        return self.metadata.deletion_timestamp is None and is_condition_true(self.status.conditions, "Ready")


_decode = msgspec.json.Decoder(ServiceCidrView).decode


class TenantServiceCidr:
    """One tenant's range in its compute clusters; made there with the first thing that needs it.

    Where it cannot be had (Kubernetes before 1.33, no right to it, addresses that are in use), Services have other
    addresses below, and DNS tells those.
    """

    def __init__(self, tenant: TenantContext) -> None:
        self.tenant = tenant
        self._confirmed: dict[str, ComputeLink] = {}
        self._refused: dict[str, float] = {}
        """By compute cluster that does not have it, when to try again, in seconds of the event loop's clock."""
        self._create_lock = asyncio.Lock()

    def address_at(self, number: int) -> str:
        """An address of the range by its number in it; "" without a range."""
        cidr = self.tenant.service_range
        return str(ipaddress.ip_network(cidr)[number]) if cidr else ""

    def contains_address(self, address: str) -> bool:
        """Whether an address is one of the range: a tenant's API server may have been given others by its admins."""
        cidr = self.tenant.service_range
        return bool(cidr and address) and ipaddress.ip_address(address) in ipaddress.ip_network(cidr)

    async def ensure_range(self, link: ComputeLink) -> bool:
        """Have the range in a compute cluster; whether it is there. Raises ApiError where it cannot be asked now."""
        if not self.tenant.service_range:
            return False
        if self._confirmed.get(link.name) is link:
            return True
        async with self._create_lock:
            if self._confirmed.get(link.name) is link:
                return True
            now = asyncio.get_running_loop().time()
            if self._refused.get(link.name, now) > now:
                return False
            why = await self._create_range(link)
            if why:
                log.warning("no range of Services", tenant=self.tenant.name, compute=link.name, why=why)
                self._refused[link.name] = now + _REFUSED_FOR
                return False
            self._confirmed[link.name] = link
            return True

    def mark_unconfirmed(self, link: ComputeLink) -> None:
        """An address of it was refused: look whether it is still there before the next."""
        self._confirmed.pop(link.name, None)

    async def _create_range(self, link: ComputeLink) -> str:
        """Make the range, and say what is in the way; "" once it is ready."""
        try:
            found = await self._find_range(link) or await self._request_range(link)
        except errors.NotFound:
            return "the compute cluster has no ServiceCIDRs"
        except errors.ApiError as error:
            if error.is_transient or is_starting(error):
                raise
            return error.server_message
        if isinstance(found, str):
            return found
        if found.metadata.labels.get(TENANT_LABEL) != self.tenant.name:
            return f"ServiceCIDR {found.metadata.name} is somebody else's"
        if found.spec.cidrs != (self.tenant.service_range,):
            return f"ServiceCIDR {found.metadata.name} is of an earlier tenant of that name"
        return await self._wait_usable(link, found)

    async def _find_range(self, link: ComputeLink) -> ServiceCidrView | None:
        try:
            return _decode(await link.client.get(resources.SERVICE_CIDRS, _range_name(self.tenant.name)))
        except errors.NotFound:
            return None

    async def _request_range(self, link: ComputeLink) -> ServiceCidrView | str:
        await refresh_ranges(link)
        wanted = ipaddress.ip_network(self.tenant.service_range)
        for other in map(ipaddress.ip_network, link.network_ranges()):
            if other.version == wanted.version and other.overlaps(wanted):
                return f"{wanted} overlaps {other}, which is in use there"
        document: dict[str, Any] = {
            "apiVersion": "networking.k8s.io/v1",
            "kind": "ServiceCIDR",
            "metadata": {"name": _range_name(self.tenant.name), "labels": {TENANT_LABEL: self.tenant.name}},
            "spec": {"cidrs": [self.tenant.service_range]},
        }
        try:
            return _decode(await link.client.create(resources.SERVICE_CIDRS, document))
        except errors.AlreadyExists:
            return _decode(await link.client.get(resources.SERVICE_CIDRS, _range_name(self.tenant.name)))

    async def _wait_usable(self, link: ComputeLink, found: ServiceCidrView | None) -> str:
        loop = asyncio.get_running_loop()
        deadline = loop.time() + _READY_WITHIN
        while found is not None and not found.is_usable:
            if found.metadata.deletion_timestamp is not None:
                return f"ServiceCIDR {found.metadata.name} is being deleted"
            if loop.time() > deadline:
                return f"ServiceCIDR {found.metadata.name} is not ready"
            await asyncio.sleep(_POLL_SECONDS)
            found = await self._find_range(link)
        return "" if found is not None else "it was deleted"


async def refresh_ranges(link: ComputeLink) -> None:
    """Note which ranges a compute cluster's Services have, for `ComputeLink.network_ranges`; none where it cannot tell
    them.

    Raises ApiError where it cannot be asked now.
    """
    try:
        page = await link.client.list_all(resources.SERVICE_CIDRS)
        link.service_ranges = [cidr for item in page.items for cidr in _decode(item).spec.cidrs]
    except errors.ApiError as error:
        if error.is_transient:
            raise


async def remove_range(link: ComputeLink, tenant: str) -> None:
    """Remove a tenant's range from a compute cluster; it goes with its last Service. Repeatable; raises ApiError."""
    try:
        found = _decode(await link.client.get(resources.SERVICE_CIDRS, _range_name(tenant)))
        if found.metadata.labels.get(TENANT_LABEL) == tenant:
            await link.client.delete(resources.SERVICE_CIDRS, found.metadata.name, uid=found.metadata.uid)
    except (errors.NotFound, errors.Conflict, errors.Forbidden):
        return


def handle_refused_address(link: ComputeLink, error: errors.Invalid, own: TenantServiceCidr, address: str) -> None:
    """Sort a refusal of an address: one that is taken returns, and another will have to do, as for one that is not of
    the tenant's range and that the compute cluster cannot give.

    Raises:
        UnavailableError: the compute cluster does not know the range yet, or any more; trying again helps.
        Invalid: something else was refused.
    """
    unknown = any(words in error.server_message for words in _NO_RANGE)
    if _TAKEN in error.server_message or (unknown and not own.contains_address(address)):
        return
    if unknown:
        own.mark_unconfirmed(link)
        raise UnavailableError(
            "the compute cluster does not know the range of the tenant's Services yet", hint="it is tried again"
        ) from error
    raise error


def _range_name(tenant: str) -> str:
    return f"vkgateway-{tenant}"
