"""The real node as a whole: its preparation, its programs, and its removal."""

from __future__ import annotations

from vkgateway.planes.pki import Authority
from vkgateway.planes.plane import SERVICE_CIDR
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway_platform.embedded.realnode import images
from vkgateway_platform.embedded.realnode.certificates import write_certificates
from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.config_files import write_configs
from vkgateway_platform.embedded.realnode.containerd import Containerd
from vkgateway_platform.embedded.realnode.host import HostChanges, run_command
from vkgateway_platform.embedded.realnode.host_network import enable_masquerade, forwarding_settings, uplink_mtu
from vkgateway_platform.embedded.realnode.mounts import FIXED_DIRS, bind_mounts
from vkgateway_platform.embedded.realnode.namespaces import NodeNamespaces, kill_all
from vkgateway_platform.embedded.realnode.options import RealNodeOptions
from vkgateway_platform.embedded.realnode.processes import process_specs


class RealNode:
    """One node with kubelet, containerd, kube-proxy and CoreDNS, in its own namespaces.

    The order is: `prepare()`; start the first of `process_specs()`, containerd; `import_images()`; start the others;
    apply `manifests.cluster_objects()` and, once the Node exists, `manifests.node_status_patch()`. At the end stop the
    processes and call `teardown()`. All methods block, and each may be repeated at any point, also after a crash.
    """

    def __init__(self, options: RealNodeOptions, *, authority: Authority, claims: HostChanges | None = None) -> None:
        self.options = options
        self._authority = authority
        self._host_changes = claims or HostChanges()
        self._cgroups = Cgroups(options.cgroup_name)
        self._namespaces = NodeNamespaces(options.network, options.folders.namespaces_dir)
        self.containerd = Containerd(options.programs["ctr"], self._namespaces)

    @property
    def has_namespaces(self) -> bool:
        """Whether the namespaces of its programs exist."""
        return self._namespaces.is_ready

    def prepare(self) -> None:
        """Create certificates, configuration, images, cgroups and namespaces; keep existing ones.

        Raises `UnavailableError` with the reason of `probe.find_obstacle()`, and `ToolError` if the machine refuses
        something.
        """
        folders = self.options.folders
        for folder in (
            folders.config_dir,
            folders.pki_dir,
            folders.images_dir,
            folders.containerd_dir,
            folders.registries_dir,
            folders.kubelet_dir,
            folders.sysctl_dir,
        ):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
        write_certificates(self.options, authority=self._authority)
        write_configs(self.options)
        images.write_images(folders.images_dir)
        self._cgroups.create(memory=self.options.pods_memory)
        self._create_namespaces()

    def process_specs(self) -> tuple[ProcessSpec, ...]:
        """Return the node's processes; containerd is first, since the kubelet exits without it."""
        return process_specs(self.options, self._namespaces)

    def import_images(self, *, timeout: float = 60.0) -> None:
        """Import the platform's images into containerd, and wait up to `timeout` seconds for it."""
        folder = self.options.folders.images_dir
        archives = {name: images.archive_path(folder, name) for name in images.IMAGE_NAMES}
        self.containerd.import_archives(archives, timeout=timeout)

    def teardown(self) -> None:
        """Remove everything from the machine except the files in the node's directory; its programs must be stopped.

        Every process still inside (containers, shims) is killed. Repeatable, also after a crash or a reboot.
        """
        kill_all(self._namespaces, self._cgroups)
        self._namespaces.destroy()
        self._cgroups.remove()
        self._host_changes.release_changes(self.options.owner_key)

    def _create_namespaces(self) -> None:
        options, network = self.options, self.options.network
        self._host_changes.apply_changes(options.owner_key, settings={}, directories=FIXED_DIRS)
        if not self._namespaces.is_ready:
            # One namespace may be gone while programs run in the other, where nothing else would find them.
            kill_all(self._namespaces, self._cgroups)
        self._namespaces.create(mounts=list(bind_mounts(options.folders)), mtu=uplink_mtu())
        run_command(*f"ip route replace {options.service_network} via {network.node_address}".split())
        run_command(*f"ip route replace {network.tenant_services} via {network.node_address}".split())
        # Packets to addresses in the range that no Service has are dropped here and do not loop.
        ends = f"ip route replace {network.tenant_services} dev lo src {network.node_address}"
        run_command(*self._namespaces.enter_command(*ends.split()))
        # Tenants without their own Service range use these addresses, which must not exist on the machine's networks.
        run_command(*self._namespaces.enter_command("ip", "route", "replace", "unreachable", SERVICE_CIDR))
        # A pod may send from its own address only: the reply to a packet's source must leave where the packet came in.
        run_command(*self._namespaces.enter_command("sh", "-c", "echo 1 >/proc/sys/net/ipv4/conf/all/rp_filter"))
        enable_masquerade(network)
        self._host_changes.apply_changes(options.owner_key, settings=forwarding_settings(network), directories=())
