"""Configuration of a tenant's name server, a CoreDNS that reads the tenant's Services (pure)."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Final

from vkgateway.planes.plane import CLUSTER_DOMAIN
from vkgateway.planes.plane_files import PlaneFiles

_SMALL_RUNTIME: Final = {"GOGC": "30", "GOMAXPROCS": "1"}
"""Go runtime settings for a server that answers a few hundred queries per second and is mostly idle."""

# CoreDNS runs `hosts` before `kubernetes`; the order is fixed when it is built. All zones share one block, since each
# zone of a block would watch the API server again. Names of the cluster are not cached, so that a change is visible at
# once.
_COREFILE: Final = """\
.:{port} {{
  bind {address}
  errors
{acl}  hosts {hosts} {domain} in-addr.arpa ip6.arpa {{
    ttl 5
    reload 1s
    fallthrough
  }}
  kubernetes {domain} in-addr.arpa ip6.arpa {{
    kubeconfig {kubeconfig}
    pods insecure
    ttl 5
    fallthrough in-addr.arpa ip6.arpa
  }}
  forward . {forwarder}
  cache 30 {{
    disable success {domain} in-addr.arpa ip6.arpa
    disable denial {domain} in-addr.arpa ip6.arpa
  }}
}}
"""

_ACL: Final = """\
  acl {{
    allow net {sources}
    block
  }}
"""


def render_corefile(
    *, kubeconfig: Path, hosts: Path, address: str, port: int, forwarder: str, sources: Sequence[str] = ()
) -> str:
    """Return CoreDNS's configuration for one tenant.

    `forwarder` (HOST:PORT) answers for all names outside the cluster. The server refuses clients outside the ranges in
    `sources`; if that is empty, it answers every client. Pods of several tenants share a range, and a pod asks its
    first question before its address is known here. So the network must keep other tenants' pods away.
    """
    return _COREFILE.format(
        domain=CLUSTER_DOMAIN,
        address=address,
        port=port,
        hosts=hosts,
        kubeconfig=kubeconfig,
        forwarder=forwarder,
        acl=_ACL.format(sources=" ".join(sources)) if sources else "",
    )


def render_hosts_file(addresses: Mapping[str, str]) -> str:
    """Return a hosts file of the names whose address differs from the one in the tenant's API server."""
    return "".join(f"{address} {name}\n" for name, address in sorted(addresses.items()))


def name_server_environment(files: PlaneFiles, *, corefile: str) -> dict[str, str]:
    """Return the environment of CoreDNS.

    CoreDNS reads its configuration and authorities only at start. Their digests change its description, which restarts
    it. It reloads the hosts file.
    """
    digest = hashlib.sha256(corefile.encode()).hexdigest()[:16]
    return {**_SMALL_RUNTIME, "VKGATEWAY_TRUST": files.trust_digest(), "VKGATEWAY_COREFILE": digest}
