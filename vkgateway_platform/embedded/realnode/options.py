"""Options of the real node: its number, names, addresses and directories."""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path

import psutil

from vkgateway.api.errors import InputError

PROGRAMS = ("containerd", "containerd-shim-runc-v2", "ctr", "kubelet", "kube-proxy", "coredns")
"""Programs that the resolver must find for a real node; runc, nft, ip and the CNI plugins come from the system."""

FORWARDER_PORT = 54
"""Next to the DNS port, at which the node's name server resolves the compute cluster's names."""

_HIGHEST_NUMBER = 255


@dataclass(frozen=True, slots=True)
class NodeNetwork:
    """Interfaces and addresses, derived from the platform's number so that two platforms never collide.

    The node has its own network namespace, connected to the machine by a veth pair. The machine routes the addresses of
    pods and Services through that pair.
    """

    number: int

    def __post_init__(self) -> None:
        if not 0 <= self.number <= _HIGHEST_NUMBER:
            raise InputError(f"platform number {self.number} is not between 0 and {_HIGHEST_NUMBER}")

    @property
    def host_link(self) -> str:
        """The machine's end of the veth pair; the node's end is its `eth0`."""
        return f"vkgv{self.number}"

    @property
    def nft_table(self) -> str:
        """The nftables table on the machine that lets pods reach other networks."""
        return f"vkg{self.number}"

    @property
    def platform_address(self) -> str:
        """Address of the platform's API servers; the platform creates it, not the real node."""
        return f"10.213.{self.number}.1"

    @property
    def node_address(self) -> str:
        """The node's own address (its InternalIP)."""
        return f"10.213.{self.number}.2"

    @property
    def platform_range(self) -> str:
        """Addresses of all platforms of the machine and of their nodes."""
        return "10.213.0.0/16"

    @property
    def all_pods_range(self) -> str:
        """Addresses of the pods of all platforms of the machine."""
        return "10.214.0.0/16"

    @property
    def all_services_range(self) -> str:
        """Addresses of the Services of all compute clusters of the machine."""
        return "10.215.0.0/16"

    @property
    def dns_forwarder(self) -> str:
        """ADDRESS:PORT at which the node's name server answers for names outside every cluster."""
        return f"{self.node_address}:{FORWARDER_PORT}"

    @property
    def host_address(self) -> str:
        """The machine's address on the veth pair: the node's default gateway."""
        return f"10.213.{self.number}.3"

    @property
    def pod_subnet(self) -> str:
        """Addresses of pods on the node."""
        return f"10.214.{self.number}.0/24"

    @property
    def service_subnet(self) -> str:
        """The compute API server's `--service-cluster-ip-range`."""
        return f"10.215.{self.number}.0/24"

    @property
    def tenant_services(self) -> str:
        """Parent range of tenants' Service ranges; two of 32 platforms on a machine never collide."""
        return f"10.{160 + self.number % 32}.0.0/16"


@dataclass(frozen=True, slots=True)
class NodeFolders:
    """The node's directories, all below one directory of the platform's data directory."""

    root: Path

    @property
    def config_dir(self) -> Path:
        """Configuration files, rewritten at each start."""
        return self.root / "config"

    @property
    def cni_dir(self) -> Path:
        """Directory of containerd's CNI configuration."""
        return self.root / "config" / "cni"

    @property
    def pki_dir(self) -> Path:
        """Certificates, keys and kubeconfigs."""
        return self.root / "pki"

    @property
    def images_dir(self) -> Path:
        """Image archives to import."""
        return self.root / "images"

    @property
    def containerd_dir(self) -> Path:
        """Images, snapshots and containerd's database; kept across restarts."""
        return self.root / "containerd"

    @property
    def registries_dir(self) -> Path:
        """Directory of the user's settings of registries: `HOST:PORT/hosts.toml`; read at each pull."""
        return self.root / "registries"

    @property
    def kubelet_dir(self) -> Path:
        """The node's /var/lib/kubelet."""
        return self.root / "kubelet"

    @property
    def logs_dir(self) -> Path:
        """The node's /var/log/pods and /var/log/containers."""
        return self.root / "logs"

    @property
    def plugins_dir(self) -> Path:
        """Directory of the platform's own CNI plugins."""
        return self.root / "config" / "cni-plugins"

    @property
    def sysctl_dir(self) -> Path:
        """Files mounted over kernel settings that the kubelet would otherwise change for the whole machine."""
        return self.root / "sysctl"

    @property
    def namespaces_dir(self) -> Path:
        """Directory with the files that keep the node's namespaces alive."""
        return self.root / "ns"


@dataclass(frozen=True, kw_only=True)
class RealNodeOptions:
    """All options of the real node; equal options give equal nodes."""

    directory: Path
    """Directory of the node, usually `DATA_DIR/node`; absolute."""
    number: int
    """The platform's number, 0 to 255."""
    programs: Mapping[str, Path]
    """Absolute path of each of `PROGRAMS`."""
    api_server: str
    """URL of the compute API server as seen from the node: `https://10.213.N.1:PORT`."""
    name: str = "real-0"
    """Name of the Node object."""
    labels: Mapping[str, str] = field(default_factory=lambda: {"platform.vkgateway.io/pool": "real"})
    """Labels the kubelet puts on its Node."""
    resources: Mapping[str, str] = field(default_factory=lambda: {"nvidia.com/gpu": "2"})
    """Extended resources written into the Node's status."""
    cluster_domain: str = "cluster.local"
    """The domain of the compute cluster's services."""
    open_ports: Sequence[int] = ()
    """TCP ports of the platform's address that every tenant's pods may reach: the gateway's kubelet endpoint."""
    service_subnet: str = ""
    """The compute cluster's service addresses; `10.215.N.0/24` when empty."""

    def __post_init__(self) -> None:
        if not self.directory.is_absolute():
            raise InputError(f"the real node's directory {str(self.directory)!r} is not an absolute path")
        if missing := [name for name in PROGRAMS if name not in self.programs]:
            raise InputError(f"the real node needs the path of {', '.join(missing)}")

    @property
    def network(self) -> NodeNetwork:
        """Interfaces and addresses."""
        return NodeNetwork(self.number)

    @property
    def folders(self) -> NodeFolders:
        """Files and directories."""
        return NodeFolders(self.directory)

    @property
    def service_network(self) -> ipaddress.IPv4Network:
        """The compute cluster's service addresses."""
        return ipaddress.IPv4Network(self.service_subnet or self.network.service_subnet)

    @property
    def cluster_dns(self) -> str:
        """ClusterIP of the cluster's name service: the tenth of the range, as in other clusters."""
        return str(self.service_network[10])

    @property
    def cgroup_name(self) -> str:
        """Name of the cgroup of all pods of this node, directly below the root.

        It contains the directory, since numbers are reused: a removal must not affect a later platform.
        """
        return f"vkg{self.number}-{sha256(self.owner_key.encode()).hexdigest()[:8]}"

    @property
    def pods_memory(self) -> int:
        """Memory limit in bytes of all pods of the node together: four fifths of the machine's."""
        return psutil.virtual_memory().total * 4 // 5

    @property
    def reserved_memory(self) -> int:
        """Bytes of the machine's memory that are reserved for the platform."""
        return psutil.virtual_memory().total - self.pods_memory

    @property
    def owner_key(self) -> str:
        """Identity of this node among those of the machine."""
        return str(self.directory)
