"""The configuration files of the node are valid and have the settings that it needs."""

import json
import tomllib
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.unit.local.realnode.test_options import OPTIONS
from vkgateway_platform.embedded.netpol import plugin as netpol
from vkgateway_platform.embedded.realnode import configs
from vkgateway_platform.embedded.realnode.options import RealNodeOptions

AWKWARD = replace(OPTIONS, directory=Path('/data/a "quoted" and \\ slashed/node'))


def containerd(options: RealNodeOptions = OPTIONS, snapshotter: str = "overlayfs") -> dict[str, Any]:
    text = configs.containerd_config(
        options, runc=Path("/usr/sbin/runc"), plugins=Path("/usr/lib/cni"), snapshotter=snapshotter
    )
    return tomllib.loads(text)


@pytest.mark.parametrize("options", [OPTIONS, AWKWARD])
def test_containerd_keeps_its_data_in_the_nodes_folder(options: RealNodeOptions) -> None:
    config = containerd(options)
    assert config["version"] == 3
    assert config["root"] == str(options.directory / "containerd")
    assert config["plugins"]["io.containerd.cri.v1.runtime"]["cni"]["conf_dir"] == str(options.directory / "config/cni")
    # One directory: containerd pulls with the transfer service, which takes a list of directories for a name.
    registries = config["plugins"]["io.containerd.cri.v1.images"]["registry"]["config_path"]
    assert registries == str(options.directory / "registries")


def test_containerd_runs_runc_by_its_path_without_systemd() -> None:
    runtime = containerd()["plugins"]["io.containerd.cri.v1.runtime"]
    runc = runtime["containerd"]["runtimes"]["runc"]
    assert runc["options"] == {"BinaryName": "/usr/sbin/runc", "SystemdCgroup": False}
    assert runc["runtime_path"] == "/bin/containerd-shim-runc-v2"
    assert runtime["restrict_oom_score_adj"] is True


def test_containerd_uses_our_sandbox_image_and_the_snapshotter_that_works() -> None:
    images = containerd(snapshotter="native")["plugins"]["io.containerd.cri.v1.images"]
    assert images["pinned_images"] == {"sandbox": "vkgateway.local/pause:1"}
    assert images["snapshotter"] == "native"


def test_kubelet_lives_in_the_nodes_own_group_and_trusts_only_the_platform() -> None:
    config = yaml.safe_load(configs.kubelet_config(OPTIONS))
    assert config["cgroupRoot"] == f"/{OPTIONS.cgroup_name}"
    assert OPTIONS.cgroup_name.startswith("vkg7-")
    assert replace(OPTIONS, directory=Path("/elsewhere")).cgroup_name != OPTIONS.cgroup_name
    assert config["address"] == "10.213.7.2"
    assert config["authentication"]["anonymous"] == {"enabled": False}
    assert config["authorization"] == {"mode": "Webhook"}
    assert config["clusterDNS"] == ["10.215.7.10"]
    assert config["failCgroupV1"] is False


def test_kubelet_sees_changed_config_maps_within_seconds() -> None:
    config = yaml.safe_load(configs.kubelet_config(OPTIONS))
    assert config["configMapAndSecretChangeDetectionStrategy"] == "Watch"
    assert config["syncFrequency"] == "3s"


def test_kube_proxy_leaves_the_machines_connection_table_alone() -> None:
    config = yaml.safe_load(configs.kube_proxy_config(OPTIONS))
    assert config["mode"] == "nftables"
    assert config["conntrack"]["maxPerCore"] == config["conntrack"]["min"] == 0
    assert config["clusterCIDR"] == "10.214.7.0/24"


@pytest.mark.parametrize(
    ("host_ports", "types"), [(True, ["ptp", "portmap", netpol.NAME]), (False, ["ptp", netpol.NAME])]
)
def test_pods_get_routed_links_and_host_ports_where_there_is_iptables(host_ports: bool, types: list[str]) -> None:
    document = json.loads(configs.cni_config(OPTIONS, mtu=1400, host_ports=host_ports))
    assert [plugin["type"] for plugin in document["plugins"]] == types
    assert document["plugins"][0]["mtu"] == 1400
    assert document["plugins"][0]["ipam"]["ranges"] == [[{"subnet": "10.214.7.0/24"}]]


def test_name_service_answers_for_the_cluster_and_asks_others_for_the_rest() -> None:
    text = configs.coredns_config(OPTIONS, upstreams=["192.0.2.53", "192.0.2.54"])
    assert text.startswith("cluster.local in-addr.arpa ip6.arpa {\n")
    assert text.count("  forward . 192.0.2.53 192.0.2.54\n") == 2
    assert text.count("bind 10.213.7.2") == 4
    assert text.count("{") == text.count("}") == 6


def test_what_tenants_pods_ask_through_knows_no_name_of_the_compute_cluster() -> None:
    text = configs.coredns_config(OPTIONS, upstreams=["192.0.2.53"])
    forwarder = text[text.index("cluster.local:54 ") :]
    assert "kubernetes" not in forwarder
    assert forwarder.startswith("cluster.local:54 in-addr.arpa:54 ip6.arpa:54 {\n")
    assert OPTIONS.network.dns_forwarder == "10.213.7.2:54"


def test_name_service_without_upstreams_knows_that_other_names_do_not_exist() -> None:
    text = configs.coredns_config(OPTIONS, upstreams=[])
    assert "forward" not in text
    assert "rcode NXDOMAIN" in text
    assert text.count("{") == text.count("}")


def test_kubeconfig_names_files_rather_than_holding_secrets() -> None:
    document = yaml.safe_load(configs.user_kubeconfig(OPTIONS, user="kubelet"))
    assert document["clusters"][0]["cluster"]["server"] == "https://10.213.7.1:6443"
    assert document["users"][0]["user"] == {
        "client-certificate": "/data/node/pki/kubelet.crt",
        "client-key": "/data/node/pki/kubelet.key",
    }


def test_loopback_name_servers_are_of_no_use_in_another_namespace() -> None:
    text = (
        "# made by hand\nsearch example.org\nnameserver 127.0.0.53\nnameserver 192.0.2.1\nnameserver ::1\nnameserver\n"
    )
    assert configs.name_servers(text) == ["192.0.2.1"]
