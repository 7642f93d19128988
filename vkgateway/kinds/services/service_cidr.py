"""ServiceCIDR of a tenant in compute clusters, so that Services have the same address as in the tenant cluster."""

from __future__ import annotations

import asyncio
import ipaddress
from typing import Any, Final

import msgspec
import structlog

from vkgateway.api.errors import UnavailableError
from vkgateway.api.names import TENANT_LABEL
from vkgateway.api.objects import Condition, Meta, is_condition_true
from vkgateway.clusters.link import ComputeLink
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.refusals import is_starting
from vkgateway.kinds.tenant_scope import TenantScope
from vkgateway.kube import errors, resources

log = structlog.get_logger(__name__)

_REFUSAL_RETRY: Final = 60.0
"""Seconds after which a compute cluster without the range is asked again."""
_READY_TIMEOUT: Final = 5.0
"""Maximum seconds until a new range is ready; typically 0.1 s."""
_POLL_SECONDS: Final = 0.05

# Messages of API servers about addresses that cannot be allocated (pkg/registry/core/service/ipallocator).
_TAKEN: Final = "already allocated"
_NO_RANGE: Final = ("does not match the current range", "not in the valid range", "does not contain")


class _Spec(msgspec.Struct):
    cidrs: tuple[str, ...] = ()


class _Status(msgspec.Struct):
    conditions: tuple[Condition, ...] = ()


class ServiceCidrView(msgspec.Struct, kw_only=True):
    """ServiceCIDR: address ranges of a cluster's Services (networking.k8s.io/v1, KEP-1880)."""

    metadata: Meta
    spec: _Spec = msgspec.field(default_factory=_Spec)
    status: _Status = msgspec.field(default_factory=_Status)

    @property
    def is_usable(self) -> bool:
        """Whether Services may get addresses from it."""
        return self.metadata.deletion_timestamp is None and is_condition_true(self.status.conditions, "Ready")


_decode = msgspec.json.Decoder(ServiceCidrView).decode


class TenantServiceCidr:
    """Service range of one tenant in its compute clusters, created when first needed.

    If it is not available (Kubernetes before 1.33, missing permission, addresses in use), Services have other addresses
    in the compute cluster, and DNS returns those.
    """

    def __init__(self, scope: TenantScope) -> None:
        self._scope = scope
        self._confirmed: dict[str, ComputeLink] = {}
        self._refused: dict[str, float] = {}
        """Time of the next attempt by compute cluster, in seconds of the event loop's clock."""
        self._create_lock = asyncio.Lock()

    @property
    def tenant(self) -> TenantContext:
        """The tenant whose range it is."""
        return self._scope.tenant

    def address_at(self, number: int) -> str:
        """Return the address with an index in the range; "" without a range."""
        cidr = self.tenant.service_range
        return str(ipaddress.ip_network(cidr)[number]) if cidr else ""

    def contains_address(self, address: str) -> bool:
        """Return whether the range contains an address: tenant admins may have configured other ranges."""
        cidr = self.tenant.service_range
        return bool(cidr and address) and ipaddress.ip_address(address) in ipaddress.ip_network(cidr)

    async def ensure_range(self, link: ComputeLink) -> bool:
        """Create the range in a compute cluster; return whether it is ready. Raises ApiError if the request must be
        retried.
        """
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
            obstacle = await self._create_range(link)
            if obstacle:
                log.warning(
                    "tenant ServiceCIDR not available", tenant=self.tenant.name, compute=link.name, why=obstacle
                )
                self._refused[link.name] = now + _REFUSAL_RETRY
                return False
            self._confirmed[link.name] = link
            return True

    def mark_unconfirmed(self, link: ComputeLink) -> None:
        """Check the range again before its next use, because the cluster refused an address of it."""
        self._confirmed.pop(link.name, None)

    async def _create_range(self, link: ComputeLink) -> str:
        """Create the range; return what prevents that, or "" when the range is ready."""
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
            return f"ServiceCIDR {found.metadata.name} belongs to another owner"
        if found.spec.cidrs != (self.tenant.service_range,):
            return f"ServiceCIDR {found.metadata.name} belongs to an earlier tenant of this name"
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
                return f"{wanted} overlaps {other}, which is in use in the compute cluster"
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
        deadline = loop.time() + _READY_TIMEOUT
        while found is not None and not found.is_usable:
            if found.metadata.deletion_timestamp is not None:
                return f"ServiceCIDR {found.metadata.name} is being deleted"
            if loop.time() > deadline:
                return f"ServiceCIDR {found.metadata.name} is not ready"
            await asyncio.sleep(_POLL_SECONDS)
            found = await self._find_range(link)
        return "" if found is not None else "it was deleted"


async def refresh_ranges(link: ComputeLink) -> None:
    """Read the service ranges of a compute cluster into `service_ranges`; they stay unchanged if it does not serve
    them.

    Raises ApiError if the request must be retried.
    """
    try:
        page = await link.client.list_all(resources.SERVICE_CIDRS)
        link.service_ranges = [cidr for item in page.items for cidr in _decode(item).spec.cidrs]
    except errors.ApiError as error:
        if error.is_transient:
            raise


async def remove_range(link: ComputeLink, tenant: str) -> None:
    """Delete a tenant's range; the cluster removes it after its last Service. Idempotent; raises ApiError."""
    try:
        found = _decode(await link.client.get(resources.SERVICE_CIDRS, _range_name(tenant)))
        if found.metadata.labels.get(TENANT_LABEL) == tenant:
            await link.client.delete(resources.SERVICE_CIDRS, found.metadata.name, uid=found.metadata.uid)
    except (errors.NotFound, errors.Conflict, errors.Forbidden):
        return


def handle_refused_address(
    link: ComputeLink, error: errors.Invalid, service_range: TenantServiceCidr, address: str
) -> None:
    """Return if another address must be used instead: the address is in use, or neither the tenant's nor the cluster's.

    Raises:
        UnavailableError: the compute cluster does not know the range yet, or no longer; a retry helps.
        Invalid: the server refused something else.
    """
    is_unknown = any(words in error.server_message for words in _NO_RANGE)
    if _TAKEN in error.server_message or (is_unknown and not service_range.contains_address(address)):
        return
    if is_unknown:
        service_range.mark_unconfirmed(link)
        raise UnavailableError(
            "the tenant's ServiceCIDR is not in effect in the compute cluster yet",
            hint="the gateway retries automatically",
        ) from error
    raise error


def _range_name(tenant: str) -> str:
    return f"vkgateway-{tenant}"
