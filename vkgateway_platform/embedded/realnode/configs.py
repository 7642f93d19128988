"""The configuration of each of the node's programs, as the text of its file. Pure."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import msgspec
import yaml
from jinja2 import Environment, StrictUndefined

from vkgateway_platform.embedded.netpol import plugin as netpol
from vkgateway_platform.embedded.netpol.cluster_state import Server, Site
from vkgateway_platform.embedded.realnode.images import PAUSE_IMAGE
from vkgateway_platform.embedded.realnode.options import FORWARDER_PORT, RealNodeOptions

CONTAINERD_SOCKET = "/run/containerd/containerd.sock"
"""Path in the node's mount namespace, which has its own /run/containerd."""
KUBELET_PORT = 10250
SITE_FILE = "netpol.json"
"""Name of the file with `site_config`."""

_CONTAINERD = """\
version = 3
root = {{ root | tojson }}
state = "/run/containerd"
oom_score = 0
# Without it containerd would run on, and no kubelet could ever use it; so it ends, and is started again.
required_plugins = ["io.containerd.grpc.v1.cri"]
disabled_plugins = [
  "io.containerd.snapshotter.v1.blockfile",
  "io.containerd.snapshotter.v1.btrfs",
  "io.containerd.snapshotter.v1.devmapper",
  "io.containerd.snapshotter.v1.erofs",
  "io.containerd.snapshotter.v1.zfs",
  "io.containerd.nri.v1.nri",
]

[grpc]
  address = {{ socket | tojson }}

[plugins.'io.containerd.cri.v1.images']
  snapshotter = {{ snapshotter | tojson }}
  [plugins.'io.containerd.cri.v1.images'.pinned_images]
    sandbox = {{ pause | tojson }}
  [plugins.'io.containerd.cri.v1.images'.registry]
    # A hosts.toml in DIR/HOST:PORT sets the authority, the mirrors or plain HTTP of a registry.
    config_path = {{ registries | tojson }}

[plugins.'io.containerd.cri.v1.runtime']
  # Lowering the score of a process is refused in many containers and virtual machines.
  restrict_oom_score_adj = true
  netns_mounts_under_state_dir = true
  [plugins.'io.containerd.cri.v1.runtime'.containerd]
    default_runtime_name = "runc"
    [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc]
      runtime_type = "io.containerd.runc.v2"
      runtime_path = {{ shim | tojson }}
      [plugins.'io.containerd.cri.v1.runtime'.containerd.runtimes.runc.options]
        BinaryName = {{ runc | tojson }}
        SystemdCgroup = false
  [plugins.'io.containerd.cri.v1.runtime'.cni]
    bin_dirs = [{{ plugins | tojson }}, {{ own_plugins | tojson }}]
    conf_dir = {{ cni | tojson }}
"""

_COREFILE = """\
{% for zone in zones %}{{ zone }} {% endfor %}{
  bind {{ address }}
  errors
  ready 127.0.0.1:8181
  kubernetes {
    kubeconfig {{ kubeconfig | tojson }}
    ttl 5
  }
}
. {
  bind {{ address }}
  errors
{% if upstreams %}  forward . {{ upstreams | join(" ") }}
  cache 30
{% else %}  # No name server that the node could reach: names of the cluster only.
  template ANY ANY {
    rcode NXDOMAIN
  }
{% endif %}}
"""

# Tenants' pods resolve external names only, not the compute cluster's.
_FORWARDER = """\
{{ domain }}:{{ port }} in-addr.arpa:{{ port }} ip6.arpa:{{ port }} {
  bind {{ address }}
  errors
  template ANY ANY {
    rcode NXDOMAIN
  }
}
.:{{ port }} {
  bind {{ address }}
  errors
{% if upstreams %}  forward . {{ upstreams | join(" ") }}
  cache 30
{% else %}  template ANY ANY {
    rcode NXDOMAIN
  }
{% endif %}}
"""

_JINJA = Environment(undefined=StrictUndefined, keep_trailing_newline=True, autoescape=False)  # noqa: S701 - no HTML


def containerd_config(options: RealNodeOptions, *, runc: Path, plugins: Path, snapshotter: str) -> str:
    """Return containerd's TOML (its version 3): own root, runc by path, cgroups without systemd."""
    return _JINJA.from_string(_CONTAINERD).render(
        root=str(options.folders.containerd_dir),
        socket=CONTAINERD_SOCKET,
        snapshotter=snapshotter,
        pause=PAUSE_IMAGE,
        registries=str(options.folders.registries_dir),
        shim=str(options.programs["containerd-shim-runc-v2"]),
        runc=str(runc),
        plugins=str(plugins),
        own_plugins=str(options.folders.plugins_dir),
        cni=str(options.folders.cni_dir),
    )


def cni_config(options: RealNodeOptions, *, mtu: int, host_ports: bool) -> str:
    """Return the CNI list: a link from each pod to the node, with addresses of the node's own range.

    Point-to-point links rather than a bridge: all of a pod's packets are then routed, so that a service's
    answer passes kube-proxy's rules on its way back even where the kernel has no bridge filter.
    """
    link = {
        "type": "ptp",
        "mtu": mtu,
        "ipMasq": False,
        "ipam": {
            "type": "host-local",
            "ranges": [[{"subnet": options.network.pod_subnet}]],
            "routes": [{"dst": "0.0.0.0/0"}],
        },
    }
    plugins: list[dict[str, Any]] = [link]
    if host_ports:
        plugins.append({"type": "portmap", "capabilities": {"portMappings": True}})
    plugins.append({"type": netpol.NAME})
    document = {"cniVersion": "1.0.0", "name": "vkgateway", "plugins": plugins}
    return msgspec.json.format(msgspec.json.encode(document), indent=2).decode()


def site_config(options: RealNodeOptions) -> bytes:
    """Return the settings of the process that enforces NetworkPolicies."""
    network = options.network
    everybody = [Server(network.platform_address, port) for port in options.open_ports]
    forwarders = [Server(network.node_address, FORWARDER_PORT, protocol) for protocol in ("UDP", "TCP")]
    found = Site(
        node=options.name,
        uplink="eth0",
        machine=(network.platform_address, network.host_address),
        pods=network.pod_subnet,
        closed=(network.platform_range, network.all_pods_range, network.all_services_range),
        all_pods=network.all_pods_range,
        open=(*everybody, *forwarders),
    )
    return msgspec.json.format(msgspec.json.encode(found), indent=2)


def kubelet_config(options: RealNodeOptions) -> str:
    """Return the kubelet's configuration (kubelet.config.k8s.io/v1beta1).

    Secrets and ConfigMaps are watched and pods checked every few seconds, so that a change is visible soon.
    """
    pki = options.folders.pki_dir
    document = {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "address": options.network.node_address,
        "port": KUBELET_PORT,
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": str(pki / "ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": str(pki / "kubelet-server.crt"),
        "tlsPrivateKeyFile": str(pki / "kubelet-server.key"),
        "clusterDomain": options.cluster_domain,
        "clusterDNS": [options.cluster_dns],
        "resolvConf": "/etc/resolv.conf",
        "containerRuntimeEndpoint": f"unix://{CONTAINERD_SOCKET}",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{options.cgroup_name}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": [],
        "systemReserved": {"memory": str(options.reserved_memory)},
        "failSwapOn": False,
        "oomScoreAdj": 0,
        # The machine has other users: its full disk is no reason to evict pods or delete images made by hand.
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "100Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        "configMapAndSecretChangeDetectionStrategy": "Watch",
        "syncFrequency": "3s",
        "volumePluginDir": "/var/lib/kubelet/volume-plugins",
        "serializeImagePulls": False,
        "maxPods": 110,
    }
    return yaml.safe_dump(document, sort_keys=False)


def kube_proxy_config(options: RealNodeOptions) -> str:
    """Return kube-proxy's configuration: nftables, and no kernel setting that only the machine's owner may change."""
    document = {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "nftables",
        "hostnameOverride": options.name,
        "bindAddress": options.network.node_address,
        "metricsBindAddress": "127.0.0.1:10249",
        "healthzBindAddress": "127.0.0.1:10256",
        "detectLocalMode": "ClusterCIDR",
        "clusterCIDR": options.network.pod_subnet,
        "clientConnection": {"kubeconfig": str(options.folders.pki_dir / "kube-proxy.kubeconfig")},
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
        "nftables": {"minSyncPeriod": "100ms", "syncPeriod": "30s"},
    }
    return yaml.safe_dump(document, sort_keys=False)


def coredns_config(options: RealNodeOptions, *, upstreams: Sequence[str]) -> str:
    """Return CoreDNS's configuration: the cluster's names, and the machine's name servers for all others."""
    own = _JINJA.from_string(_COREFILE).render(
        zones=[options.cluster_domain, "in-addr.arpa", "ip6.arpa"],
        address=options.network.node_address,
        kubeconfig=str(options.folders.pki_dir / "coredns.kubeconfig"),
        upstreams=upstreams,
    )
    forwarder = _JINJA.from_string(_FORWARDER).render(
        domain=options.cluster_domain, address=options.network.node_address, port=FORWARDER_PORT, upstreams=upstreams
    )
    return own + forwarder


def user_kubeconfig(options: RealNodeOptions, *, user: str) -> str:
    """Return a kubeconfig that names the certificate files of `user` in the node's folder."""
    pki = options.folders.pki_dir
    cluster = {"server": options.api_server, "certificate-authority": str(pki / "ca.crt")}
    credentials = {"client-certificate": str(pki / f"{user}.crt"), "client-key": str(pki / f"{user}.key")}
    document = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "compute",
        "clusters": [{"name": "compute", "cluster": cluster}],
        "users": [{"name": user, "user": credentials}],
        "contexts": [{"name": "compute", "context": {"cluster": "compute", "user": user}}],
    }
    return yaml.safe_dump(document, sort_keys=False)


def name_servers(resolv_conf: str) -> list[str]:
    """Return the IPv4 name servers that can be reached from another network namespace: loopback ones cannot."""
    lines = (line.split() for line in resolv_conf.splitlines())
    servers = [words[1] for words in lines if len(words) > 1 and words[0] == "nameserver"]
    return [server for server in servers if not server.startswith("127.") and ":" not in server]
