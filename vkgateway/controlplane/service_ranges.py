"""Choosing the addresses of a tenant's Services: a range that is its own, so that compute clusters can have it too."""

from __future__ import annotations

import hashlib
import ipaddress
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from itertools import islice

from vkgateway.model.errors import InputError

IpNetwork = ipaddress.IPv4Network | ipaddress.IPv6Network

_LONGEST_PREFIX = {4: 28, 6: 124}
"""Longest prefix of a tenant's range: the first address is the API server's, the tenth that of names."""
_SHORTEST_PREFIX = {4: 12, 6: 108}
"""Shortest one: API servers take no more than a million addresses (`--service-cluster-ip-range`)."""
_MAX_ATTEMPTS = 65536


@dataclass(frozen=True, slots=True)
class ServiceRanges:
    """Cuts `parent_range` into tenants' ranges of `prefix` bits each."""

    parent_range: IpNetwork
    prefix: int

    @classmethod
    def parse(cls, within: str, *, prefix: int) -> ServiceRanges:
        """Read what the settings say.

        Raises:
            InputError: it is no range, or none of that length can be cut from it.
        """
        try:
            found = ipaddress.ip_network(within)
        except ValueError as error:
            raise InputError(f"services.range: {error}") from error
        shortest, longest = max(found.prefixlen, _SHORTEST_PREFIX[found.version]), _LONGEST_PREFIX[found.version]
        if not shortest <= prefix <= longest:
            raise InputError(f"services.tenantPrefix: {prefix} is not from {shortest} to {longest}, as {within} needs")
        return cls(found, prefix)

    def choose_range(self, tenant: str, *, given: Mapping[str, str], taken: Collection[str] = ()) -> str:
        """Choose a range for a new tenant; "" where none is free.

        `given` tells which ranges belong to which tenant, `taken` what else no tenant may have: ranges of compute
        clusters' Services and pods. Where the search starts depends on the tenant's name, so that platforms that
        share a compute cluster rarely meet.
        """
        others = [cidr for cidr, owner in given.items() if owner != tenant]
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
