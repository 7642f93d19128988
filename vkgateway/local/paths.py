"""Where an embedded platform keeps its files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vkgateway.programs.supervisor.spec import SupervisorPaths


@dataclass(frozen=True, slots=True)
class PlatformPaths:
    """The files and folders in one data directory."""

    data_dir: Path

    @property
    def record_path(self) -> Path:
        """What was chosen for this platform: layout version, options, address, ports."""
        return self.data_dir / "platform.json"

    @property
    def lock_path(self) -> Path:
        """Locked by whichever of `up` and `down` is at work."""
        return self.data_dir / "lock"

    @property
    def pki_dir(self) -> Path:
        """Authorities of etcd and the certificates they issued."""
        return self.data_dir / "pki"

    @property
    def compute_credentials(self) -> Path:
        """The compute cluster's root of trust."""
        return self.pki_dir / "compute"

    @property
    def compute_dir(self) -> Path:
        """Files that the compute cluster's control plane reads; all can be rebuilt."""
        return self.data_dir / "compute"

    @property
    def etcd_dir(self) -> Path:
        """Etcd's database: every cluster's state."""
        return self.data_dir / "etcd"

    @property
    def hollow_dir(self) -> Path:
        """KWOK's configuration, certificates and the log it serves."""
        return self.data_dir / "hollow"

    @property
    def node_dir(self) -> Path:
        """Everything of the real node."""
        return self.data_dir / "node"

    @property
    def admin_kubeconfig(self) -> Path:
        """The compute cluster's admin: also how the command line reaches the management cluster."""
        return self.data_dir / "compute.kubeconfig"

    @property
    def gateway_kubeconfig(self) -> Path:
        """The gateway's own, far from admin."""
        return self.data_dir / "gateway.kubeconfig"

    @property
    def provisioner_kubeconfig(self) -> Path:
        """The provisioner's own."""
        return self.data_dir / "provisioner.kubeconfig"

    @property
    def volumes_dir(self) -> Path:
        """What pods keep: a folder for each volume."""
        return self.data_dir / "volumes"

    @property
    def tenants_dir(self) -> Path:
        """Files of tenants' control planes, a folder for each; all can be rebuilt."""
        return self.data_dir / "tenants"

    @property
    def gateway_config(self) -> Path:
        """Settings of the gateway process."""
        return self.data_dir / "gateway.yaml"

    @property
    def gateway_lock(self) -> Path:
        """Locked by the gateway process, which goes by the name in it."""
        return self.data_dir / "gateway.lock"

    @property
    def arbiter_dir(self) -> Path:
        """What the gateway decided, and what was used: two logs."""
        return self.data_dir / "arbiter"

    @property
    def conformance_dir(self) -> Path:
        """What conformance cases came to, with the suite's logs and images."""
        return self.data_dir / "conformance"

    def list_all(self) -> list[Path]:
        """List all that a platform keeps; its record near the end, so that a removal cut short can be repeated."""
        supervisor = SupervisorPaths(self.data_dir)
        folders = (
            self.pki_dir,
            self.compute_dir,
            self.etcd_dir,
            self.hollow_dir,
            self.node_dir,
            self.arbiter_dir,
            self.volumes_dir,
            self.conformance_dir,
        )
        kubeconfigs = (self.admin_kubeconfig, self.gateway_kubeconfig, self.provisioner_kubeconfig)
        files = (*kubeconfigs, self.gateway_config, self.gateway_lock, self.record_path, self.lock_path)
        return [*folders, self.tenants_dir, supervisor.run_dir, supervisor.log_dir, *files]
