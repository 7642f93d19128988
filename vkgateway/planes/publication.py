"""Where clients outside the management cluster reach an API server (pure)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Self

from vkgateway.api.names import host_in_url
from vkgateway.api.types import ApiServerExposure, ExposureType

_ANY_ADDRESS: Final = ("0.0.0.0/0", "::/0")


@dataclass(frozen=True, slots=True, kw_only=True)
class Publication:
    """State of an exposure: the published URL, or why there is none yet.

    `names` are the DNS names and IP addresses that certificates must contain. `reason` and `message` are empty if the
    API server is published.
    """

    type: ExposureType = "ClusterIP"
    url: str = ""
    names: tuple[str, ...] = ()
    reason: str = ""
    message: str = ""

    @property
    def is_known(self) -> bool:
        """Whether the state was observed; a record has only type and URL."""
        return bool(self.url or self.reason)

    def fits(self, found: Publication) -> bool:
        """Return whether certificates and kubeconfigs for this publication fit the one that was found later.

        A record does not have the names. Certificates were made for them, too.
        """
        return (self.type, self.url) == (found.type, found.url) and (not self.names or self.names == found.names)

    @classmethod
    def at(cls, kind: ExposureType, *, host: str, port: int, names: tuple[str, ...] = ()) -> Self:
        """Return the publication at a DNS name or IP address."""
        return cls(type=kind, url=f"https://{host_in_url(host)}:{port}", names=tuple(dict.fromkeys((host, *names))))

    @classmethod
    def pending(cls, kind: ExposureType, reason: str, message: str, *, names: tuple[str, ...] = ()) -> Self:
        """Return an exposure that clients cannot use yet."""
        return cls(type=kind, names=names, reason=reason, message=message)


def client_ranges(exposure: ApiServerExposure) -> tuple[str, ...]:
    """Return the CIDRs of clients that are no pods. Pods of a gateway or ingress controller connect for its clients."""
    return (exposure.source_ranges or _ANY_ADDRESS) if exposure.type in {"NodePort", "LoadBalancer"} else ()
