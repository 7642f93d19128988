"""Where tenants' credentials live: one Secret a tenant in the management cluster, the source of truth."""

from __future__ import annotations

import base64
import binascii
import contextlib
import ipaddress
from dataclasses import dataclass, field
from typing import Any, Protocol

import msgspec

from vkgateway.controlplane.credentials import Credentials
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import NAMESPACES, SECRETS
from vkgateway.model.errors import VkgatewayError
from vkgateway.model.names import SYSTEM_NAMESPACE, TENANT_LABEL, tenant_secret_name
from vkgateway.model.objects import Meta

PORT_KEY = "port"
RANGE_KEY = "service-range"
"""Key of the range of a tenant's Services; tenants that have none of their own lack it."""
CIDR_KEY = "service-cidr"
"""Key of the range that its API server was born with, its own or its template's."""
KUBECONFIG_KEY = "kubeconfig"
"""Key of the admin's kubeconfig in a tenant's Secret."""
_OBJECTS_ANNOTATION = "vkgateway.io/objects"
_SECRET_TYPE = "vkgateway.io/tenant"  # noqa: S105 - the kind of Secret, none itself


class BrokenCredentials(VkgatewayError):  # noqa: N818 - named by the reason
    """A tenant's Secret is there, but something in it is missing or cannot be read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ControlPlaneRecord:
    """What is kept of a tenant: its credentials, the port of its API server, the kubeconfig handed out.

    `objects` is a digest of the objects that it was born with, empty until it has been. `service_range` is the range of
    its Services' addresses, if that is its own alone; `service_cidr` is the same or what its template said when it was
    made, empty for tenants from before that was kept: an API server must not be given another.
    """

    credentials: Credentials
    port: int
    kubeconfig: str = field(default="", repr=False)
    objects: str = ""
    service_range: str = ""
    service_cidr: str = ""


class RecordStore(Protocol):
    """Keeps a record for each tenant."""

    async def load(self, tenant: str) -> ControlPlaneRecord | None:
        """Return the tenant's record, None where there is none yet."""

    async def save(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Keep the record; where there is one already, its credentials stay. Returns what is now kept."""

    async def delete(self, tenant: str) -> None:
        """Forget the tenant; nothing happens where it is not known."""

    async def assigned_ports(self) -> dict[int, str]:
        """Tell which ports are given to which tenant."""

    async def assigned_ranges(self) -> dict[str, str]:
        """Tell which ranges of Services' addresses are given to which tenant."""


class _Secret(msgspec.Struct):
    metadata: Meta
    data: dict[str, str] = {}


_decode_secret = msgspec.json.Decoder(_Secret).decode


class SecretStore:
    """The store in the management cluster."""

    def __init__(self, client: Client, *, namespace: str = SYSTEM_NAMESPACE) -> None:
        self._client = client
        self._namespace = namespace

    async def load(self, tenant: str) -> ControlPlaneRecord | None:
        """Return the tenant's record, None where there is none yet; BrokenCredentials names what is wrong."""
        try:
            body = await self._client.get(SECRETS, tenant_secret_name(tenant), namespace=self._namespace)
        except errors.NotFound:
            return None
        return self._parse_record(_decode_secret(body))

    async def save(self, tenant: str, record: ControlPlaneRecord) -> ControlPlaneRecord:
        """Create the Secret, or bring port, kubeconfig, digest and admin certificate of it up to date.

        Of two that create it at the same time the first one's authorities stay, and both get them back.
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
        await self._client.patch(SECRETS, name, changes, namespace=self._namespace)
        return record

    async def delete(self, tenant: str) -> None:
        """Delete the Secret; nothing happens where there is none."""
        with contextlib.suppress(errors.NotFound):
            await self._client.delete(SECRETS, tenant_secret_name(tenant), namespace=self._namespace)

    async def assigned_ports(self) -> dict[int, str]:
        """Tell which ports are given to which tenant, by the Secrets there are."""
        given: dict[int, str] = {}
        for tenant, port in (await self._values_by_tenant(PORT_KEY)).items():
            with contextlib.suppress(ValueError):
                given[int(port)] = tenant
        return given

    async def assigned_ranges(self) -> dict[str, str]:
        """Tell which ranges of Services' addresses are given to which tenant, by the Secrets there are."""
        given: dict[str, str] = {}
        for tenant, cidr in (await self._values_by_tenant(RANGE_KEY)).items():
            with contextlib.suppress(ValueError):
                given[str(ipaddress.ip_network(cidr))] = tenant
        return given

    async def _values_by_tenant(self, key: str) -> dict[str, str]:
        """What tenants have under a key, by tenant; those that lack it, or hold something unreadable, are left out."""
        found: dict[str, str] = {}
        pages = self._client.list_pages(SECRETS, namespace=self._namespace, label_selector=TENANT_LABEL)
        async for page in pages:
            for item in page.items:
                secret = _decode_secret(item)
                with contextlib.suppress(KeyError, ValueError):
                    found[secret.metadata.labels[TENANT_LABEL]] = base64.b64decode(secret.data[key]).decode()
        return found

    async def _create_secret(self, secret: dict[str, Any]) -> None:
        try:
            await self._client.create(SECRETS, secret, namespace=self._namespace)
        except errors.NotFound:
            with contextlib.suppress(errors.AlreadyExists):
                await self._client.create(NAMESPACES, {"metadata": {"name": self._namespace}})
            await self._client.create(SECRETS, secret, namespace=self._namespace)

    def _parse_record(self, secret: _Secret) -> ControlPlaneRecord:
        name = f"{self._namespace}/{secret.metadata.name}"
        try:
            files = {key: base64.b64decode(value, validate=True) for key, value in secret.data.items()}
            return ControlPlaneRecord(
                credentials=Credentials.from_files(files),
                port=int(files[PORT_KEY]),
                kubeconfig=files.get(KUBECONFIG_KEY, b"").decode(),
                objects=secret.metadata.annotations.get(_OBJECTS_ANNOTATION, ""),
                service_range=files.get(RANGE_KEY, b"").decode(),
                service_cidr=files.get(CIDR_KEY, b"").decode(),
            )
        except KeyError as error:
            raise BrokenCredentials(f"Secret {name} lacks the key {error.args[0]!r}", hint=_RESTORE_HINT) from error
        except (binascii.Error, ValueError) as error:
            # What was read may be a private key: no part of it is repeated.
            raise BrokenCredentials(f"Secret {name} holds something unreadable", hint=_RESTORE_HINT) from error


_RESTORE_HINT = "put back the Secret as it was; a tenant without its authority has to be deleted and made again"


def _build_secret(tenant: str, record: ControlPlaneRecord) -> dict[str, Any]:
    files = {
        **record.credentials.to_files(),
        PORT_KEY: str(record.port).encode(),
        KUBECONFIG_KEY: record.kubeconfig.encode(),
    }
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
