"""Parameters of the driver, from the setting `controlPlanes.parameters`."""

from __future__ import annotations

from typing import Annotated

import msgspec

from vkgateway.controlplane.components import PROGRAMS
from vkgateway.controlplane.plane import ComponentName
from vkgateway.model.errors import InputError

_COREDNS_VERSION = "v1.15.0"


class Parameters(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where images come from, and how the pods of control planes are scheduled."""

    registry: str = "registry.k8s.io"
    """Prefix of all images. A mirror keeps the names and tags of the official releases."""
    core_dns_image: str = ""
    """Image of the name servers; by default `coredns/coredns` of the registry."""
    namespace_prefix: Annotated[str, msgspec.Meta(pattern=r"^[a-z]([-a-z0-9]{0,29}[a-z0-9])?-$")] = "vkgateway-tenant-"
    """Prefix of the namespace of each tenant's control plane; the tenant's name follows."""
    image_pull_secret: str = ""
    """Name of the Secret with registry credentials in each namespace of a control plane."""
    priority_class_name: str = ""
    etcd_endpoints: str = ""
    """Comma-separated URLs at which pods reach etcd; by default those of the gateway."""

    def component_image(self, name: ComponentName, version: str) -> str:
        """Return the image of a component for a Kubernetes version such as `1.36.3`."""
        return f"{self.registry}/{PROGRAMS[name]}:v{version}"

    @property
    def name_server_image(self) -> str:
        """Image of CoreDNS."""
        return self.core_dns_image or f"{self.registry}/coredns/coredns:{_COREDNS_VERSION}"

    @property
    def etcd_urls(self) -> tuple[str, ...]:
        """URLs at which pods reach etcd; empty if they are those of the gateway."""
        return tuple(url.strip() for url in self.etcd_endpoints.split(",") if url.strip())


def parse_parameters(given: object) -> Parameters:
    """Return the parameters.

    Raises:
        InputError: a parameter is unknown or invalid; the hint lists the known ones.
    """
    try:
        return msgspec.convert(given or {}, Parameters)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted(field.encode_name for field in msgspec.structs.fields(Parameters)))
        raise InputError(f"controlPlanes.parameters: {error}", hint=f"Parameters of this driver: {known}.") from error
