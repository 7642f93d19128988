"""Parameters of the driver, from the setting `controlPlanes.parameters`."""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Mapping, Sequence
from typing import Annotated

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.kinds.policies.egress_rules import PRIVATE_RANGES
from vkgateway.planes.components import PROGRAMS
from vkgateway.planes.plane import ComponentName
from vkgateway.planes.pod_settings import Toleration

_COREDNS_VERSION = "v1.15.0"

_IMAGE_NAME = re.compile(r"[a-z0-9][-a-z0-9._/]*:[A-Za-z0-9_][A-Za-z0-9_.-]*")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


class Parameters(msgspec.Struct, frozen=True, kw_only=True, rename="camel", forbid_unknown_fields=True):
    """Where images come from, and how the pods of control planes are scheduled."""

    registry: str = "registry.k8s.io"
    """Prefix of all images. A mirror keeps the names and tags of the official releases."""
    image_digests: dict[str, str] = {}
    """Digest of an image by name and tag, such as `kube-apiserver:v1.36.3`. Other images are named by their tag."""
    core_dns_image: str = ""
    """Image of the name servers; by default `coredns/coredns` of the registry."""
    namespace_prefix: Annotated[str, msgspec.Meta(pattern=r"^[a-z]([-a-z0-9]{0,29}[a-z0-9])?-$")] = "vkgateway-tenant-"
    """Prefix of the namespace of each tenant's control plane; the tenant's name follows."""
    image_pull_secrets: tuple[str, ...] = ()
    """Names of Secrets in `vkgateway-system` with registry credentials. Each control plane's namespace gets a copy."""
    priority_class_name: str = ""
    node_selector: dict[str, str] = {}
    """Labels of the nodes on which control planes and name servers run."""
    tolerations: tuple[Toleration, ...] = ()
    """Tolerations of control planes and name servers."""
    etcd_endpoints: tuple[str, ...] = ()
    """URLs at which pods reach etcd; by default those of the gateway."""
    client_ranges: tuple[str, ...] = ()
    """CIDRs that reach API servers and are no pods, such as those of nodes or of a gateway outside the cluster."""
    blocked_ranges: tuple[str, ...] = PRIVATE_RANGES
    """CIDRs that API servers do not reach, except etcd, the gateway and the tenant's pods."""

    def component_image(self, name: ComponentName, version: str) -> str:
        """Return the image of a component for a Kubernetes version such as `1.36.3`."""
        return self._image(f"{PROGRAMS[name]}:v{version}")

    @property
    def name_server_image(self) -> str:
        """Image of CoreDNS."""
        return self.core_dns_image or self._image(f"coredns/coredns:{_COREDNS_VERSION}")

    def _image(self, name: str) -> str:
        digest = self.image_digests.get(name)
        return f"{self.registry}/{name}@{digest}" if digest else f"{self.registry}/{name}"


def parse_parameters(given: object) -> Parameters:
    """Return the parameters.

    Raises:
        InputError: a parameter is unknown or invalid; the hint lists the known ones.
    """
    try:
        found = msgspec.convert(given or {}, Parameters)
    except msgspec.ValidationError as error:
        known = ", ".join(sorted(field.encode_name for field in msgspec.structs.fields(Parameters)))
        raise InputError(f"controlPlanes.parameters: {error}", hint=f"Parameters of this driver: {known}.") from error
    _check_digests(found.image_digests)
    _check_ranges("clientRanges", found.client_ranges)
    _check_ranges("blockedRanges", found.blocked_ranges)
    return found


def _check_ranges(name: str, ranges: Sequence[str]) -> None:
    for cidr in ranges:
        try:
            ipaddress.ip_network(cidr)
        except ValueError as error:
            raise InputError(
                f"controlPlanes.parameters.{name}: {cidr!r} is not a range of addresses",
                hint="Write CIDRs, such as 10.0.0.0/8.",
            ) from error


def _check_digests(digests: Mapping[str, str]) -> None:
    for name, digest in digests.items():
        if not _IMAGE_NAME.fullmatch(name) or not _DIGEST.fullmatch(digest):
            raise InputError(
                f"controlPlanes.parameters.imageDigests: {name!r}: {digest!r} is not an image with its digest",
                hint="Write NAME:TAG and the digest, such as kube-apiserver:v1.36.3: sha256:… with 64 digits.",
            )
