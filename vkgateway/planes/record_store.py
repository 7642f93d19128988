"""Store of tenants' credentials: one Secret per tenant in the management cluster, the source of truth."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.names import SYSTEM_NAMESPACE, TENANT_LABEL, tenant_secret_name
from vkgateway.api.objects import SecretView, decode_secret
from vkgateway.api.types import ExposureType
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NAMESPACES, SECRETS
from vkgateway.planes.credentials import Credentials

PORT_KEY = "port"
ADDRESS_KEY = "address"
"""Key of the IP address of the API server; absent in records of older gateways."""
RANGE_KEY = "service-range"
"""Key of a tenant's Service range; absent if the tenant uses its template's range."""
CIDR_KEY = "service-cidr"
"""Key of the Service range with which the API server was created, own or from the template."""
REPLICAS_KEY = "replicas"
"""Key of the number of API servers; absent for tenants older than this key, which have one."""
EXPOSURE_KEY = "exposure"
"""Key of the type of exposure."""
PUBLISHED_KEY = "published-url"
"""Key of the URL for clients outside the management cluster; empty if there is none."""
DRIVER_KEY = "driver"
MOVING_KEY = "moving-to"
KUBECONFIG_KEY = "kubeconfig"
"""Key of the admin's kubeconfig."""
_OBJECTS_ANNOTATION = "vkgateway.io/objects"
_SECRET_TYPE = "vkgateway.io/tenant"  # noqa: S105 - the kind of Secret, none itself


class BrokenCredentials(VkgatewayError):  # noqa: N818 - named by the reason
    """A tenant's Secret lacks a key, or a value in it is unreadable."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneRecord:
    """Stored state of a tenant's control plane: credentials, port and address of the API server, admin kubeconfig.

    `objects` is a digest of the template objects that were applied; empty before the first time. `service_range` is the
    range of its Services if no other tenant has it. `service_cidr` is the same, or the template's range when the tenant
    was created. It is empty for tenants older than this field. An API server must keep its range. `replicas` is the
    number of API servers. `exposure` is how the API server was last exposed, and `published_url` where. `driver` runs
    the control plane; empty for tenants older than this field. During a move, `moving_to` is the driver that may have
    started it, too.
    """

    credentials: Credentials
    port: int
    address: str = ""
    kubeconfig: str = field(default="", repr=False)
    objects: str = ""
    service_range: str = ""
    service_cidr: str = ""
    replicas: int = 1
    exposure: ExposureType = "ClusterIP"
    published_url: str = ""
    driver: str = ""
    moving_to: str = ""


class RecordStore(Protocol):
    """Stores one record per tenant."""

    async def load(self, tenant: str) -> ControlPlaneRecord | None:
        """Return the tenant's record, None if there is none."""

    async def save(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Save the record and return the stored one; credentials that are already stored win."""

    async def delete(self, tenant: str) -> None:
        """Delete the tenant's record; no error if there is none."""

    async def assigned_ports(self) -> dict[int, str]:
        """Return the tenant of each assigned port."""

    async def assigned_ranges(self) -> dict[str, str]:
        """Return the tenant of each assigned Service range."""


class SecretStore:
    """Record store in Secrets of the management cluster."""

    def __init__(self, client: Client) -> None:
        self._client = client

    async def load(self, tenant: str) -> ControlPlaneRecord | None:
        """Return the tenant's record, None if there is none. Raises BrokenCredentials with the broken key."""
        try:
            body = await self._client.get(SECRETS, tenant_secret_name(tenant), namespace=SYSTEM_NAMESPACE)
        except errors.NotFound:
            return None
        return self._parse_record(decode_secret(body))

    async def save(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Create the Secret, or update its port, kubeconfig, digest and admin certificate.

        If two replicas create it at the same time, the first one's CAs win, and both get these back.
        """
        name = tenant_secret_name(tenant)
        secret = _build_secret(tenant, record)
        try:
            await self._create_secret(secret)
            return record
        except errors.AlreadyExists:
            kept = await self.load(tenant)
        if kept is None or kept.credentials.ca.cert_pem != record.credentials.ca.cert_pem:
            return kept or await self.save(tenant, record)
        changes = {key: secret[key] for key in ("metadata", "data")}
        await self._client.patch(SECRETS, name, changes, namespace=SYSTEM_NAMESPACE)
        return record

    async def delete(self, tenant: str) -> None:
        """Delete the Secret; no error if there is none."""
        with contextlib.suppress(errors.NotFound):
            await self._client.delete(SECRETS, tenant_secret_name(tenant), namespace=SYSTEM_NAMESPACE)

    async def assigned_ports(self) -> dict[int, str]:
        """Return the tenant of each assigned port, from all Secrets."""
        assigned: dict[int, str] = {}
        for tenant, port in (await self._values_by_tenant(PORT_KEY)).items():
            with contextlib.suppress(ValueError):
                assigned[int(port)] = tenant
        return assigned

    async def assigned_ranges(self) -> dict[str, str]:
        """Return the tenant of each assigned Service range, from all Secrets."""
        assigned: dict[str, str] = {}
        for tenant, cidr in (await self._values_by_tenant(RANGE_KEY)).items():
            with contextlib.suppress(ValueError):
                assigned[str(ipaddress.ip_network(cidr))] = tenant
        return assigned

    async def _values_by_tenant(self, key: str) -> dict[str, str]:
        """Return the value of a key by tenant, without tenants that lack it or whose value is unreadable."""
        found: dict[str, str] = {}
        pages = self._client.list_pages(SECRETS, namespace=SYSTEM_NAMESPACE, label_selector=TENANT_LABEL)
        async for page in pages:
            for item in page.items:
                secret = decode_secret(item)
                with contextlib.suppress(KeyError, ValueError):
                    found[secret.metadata.labels[TENANT_LABEL]] = base64.b64decode(secret.data[key]).decode()
        return found

    async def _create_secret(self, secret: dict[str, Any]) -> None:
        try:
            await self._client.create(SECRETS, secret, namespace=SYSTEM_NAMESPACE)
        except errors.NotFound:
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create(NAMESPACES, {"metadata": {"name": SYSTEM_NAMESPACE}})
            await self._client.create(SECRETS, secret, namespace=SYSTEM_NAMESPACE)

    def _parse_record(self, secret: SecretView) -> ControlPlaneRecord:
        name = f"{SYSTEM_NAMESPACE}/{secret.metadata.name}"
        try:
            files = {key: base64.b64decode(value, validate=True) for key, value in secret.data.items()}
            return ControlPlaneRecord(
                credentials=Credentials.from_files(files),
                port=int(files[PORT_KEY]),
                address=files.get(ADDRESS_KEY, b"").decode(),
                kubeconfig=files.get(KUBECONFIG_KEY, b"").decode(),
                objects=secret.metadata.annotations.get(_OBJECTS_ANNOTATION, ""),
                service_range=files.get(RANGE_KEY, b"").decode(),
                service_cidr=files.get(CIDR_KEY, b"").decode(),
                replicas=int(files.get(REPLICAS_KEY) or 1),
                exposure=msgspec.convert(files.get(EXPOSURE_KEY, b"ClusterIP").decode(), ExposureType),
                published_url=files.get(PUBLISHED_KEY, b"").decode(),
                driver=files.get(DRIVER_KEY, b"").decode(),
                moving_to=files.get(MOVING_KEY, b"").decode(),
            )
        except KeyError as error:
            raise BrokenCredentials(f"Secret {name} lacks the key {error.args[0]!r}", hint=_RESTORE_HINT) from error
        except (binascii.Error, ValueError) as error:
            # The value may be a private key, so the message contains no part of it.
            raise BrokenCredentials(f"Secret {name} has an unreadable value", hint=_RESTORE_HINT) from error


_RESTORE_HINT = "Restore the Secret from a backup. A tenant without its CA must be deleted and created again."


def _build_secret(tenant: str, record: ControlPlaneRecord) -> dict[str, Any]:
    files = {
        **record.credentials.to_files(),
        PORT_KEY: str(record.port).encode(),
        KUBECONFIG_KEY: record.kubeconfig.encode(),
        REPLICAS_KEY: str(record.replicas).encode(),
        EXPOSURE_KEY: record.exposure.encode(),
        PUBLISHED_KEY: record.published_url.encode(),
        DRIVER_KEY: record.driver.encode(),
        MOVING_KEY: record.moving_to.encode(),
    }
    if record.address:
        files[ADDRESS_KEY] = record.address.encode()
    if record.service_range:
        files[RANGE_KEY] = record.service_range.encode()
    if record.service_cidr:
        files[CIDR_KEY] = record.service_cidr.encode()
    return {
        "metadata": {
            "name": tenant_secret_name(tenant),
            "labels": {TENANT_LABEL: tenant},
            "annotations": {_OBJECTS_ANNOTATION: record.objects},
        },
        "type": _SECRET_TYPE,
        "data": {name: base64.b64encode(content).decode() for name, content in files.items()},
    }
