"""Choice of a tenant's Service range; it is unique, so that compute clusters can use it too."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from vkgateway.api.errors import InputError

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_LONGEST_PREFIX = {4: 28, 6: 124}
"""Longest prefix of a tenant's range by IP version. The API server uses the first address, the name server the tenth.
"""
_SHORTEST_PREFIX = {4: 12, 6: 108}
"""Shortest prefix by IP version: API servers take at most a million addresses (`--service-cluster-ip-range`)."""
_MAX_ATTEMPTS = 65536


@dataclass(frozen=True, slots=True)
class ServiceRanges:
    """Splits `parent_range` into tenants' ranges with the prefix length `prefix`."""

    parent_range: IpNetwork
    prefix: int

    @classmethod
    def parse(cls, parent_range: str, *, prefix: int) -> ServiceRanges:
        """Parse the settings.

        Raises:
            InputError: `parent_range` is not a CIDR, or has no ranges of that prefix length.
        """
        try:
            found = ipaddress.ip_network(parent_range)
        except ValueError as error:
            raise InputError(f"services.range: {error}") from error
        shortest, longest = max(found.prefixlen, _SHORTEST_PREFIX[found.version]), _LONGEST_PREFIX[found.version]
        if not shortest <= prefix <= longest:
            raise InputError(
                f"services.tenantPrefix: {prefix} is not from {shortest} to {longest}, as {parent_range} needs"
            )
        return cls(found, prefix)

    def choose_range(self, tenant: str, *, assigned: Mapping[str, str], taken: Collection[str] = ()) -> str:
        """Return a range for a new tenant; "" if none is free.

        `assigned` maps assigned ranges to their tenants. `taken` are ranges that no tenant may have: those of compute
        clusters' Services and pods. The search starts at a range that depends on the tenant's name, so that platforms
        that share a compute cluster rarely collide.
        """
        others = [cidr for cidr, owner in assigned.items() if owner != tenant]
        avoided = [
            parsed
            for cidr in (*others, *taken)
            if (parsed := _parse_network(cidr)).version == self.parent_range.version
        ]
        return next(
            (
                str(one)
                for one in islice(self._ranges_from_name(tenant), _MAX_ATTEMPTS)
                if not any(map(one.overlaps, avoided))
            ),
            "",
        )

    def _ranges_from_name(self, tenant: str) -> Iterator[IpNetwork]:
        count = 1 << (self.prefix - self.parent_range.prefixlen)
        size = 1 << (self.parent_range.max_prefixlen - self.prefix)
        start = int.from_bytes(hashlib.sha256(tenant.encode()).digest()[:4]) % count
        for index in range(count):
            address = self.parent_range.network_address + (start + index) % count * size
            yield ipaddress.ip_network((address, self.prefix))


def _parse_network(cidr: str) -> IpNetwork:
    return ipaddress.ip_network(cidr, strict=False)
