"""Paths of an embedded platform's files."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from vkgateway.planes.supervisor.spec import SupervisorPaths


@dataclass(frozen=True, slots=True)
class GatewayPaths:
    """Files of the gateway process in a platform's data directory."""

    data_dir: Path

    @property
    def kubeconfig(self) -> Path:
        """Kubeconfig of the gateway, which is not an admin."""
        return self.data_dir / "gateway.kubeconfig"

    @property
    def config_file(self) -> Path:
        """Settings."""
        return self.data_dir / "gateway.yaml"

    @property
    def lock_file(self) -> Path:
        """Lock of the process; it contains the process's name."""
        return self.data_dir / "gateway.lock"

    @property
    def chart_values(self) -> Path:
        """Values for the chart, if only the cluster was started."""
        return self.data_dir / "chart-values.yaml"

    @property
    def compute_cluster(self) -> Path:
        """The ComputeCluster to apply after the chart, if only the cluster was started."""
        return self.data_dir / "compute-cluster.yaml"

    @property
    def arbiter_dir(self) -> Path:
        """Logs of decisions and of resource usage."""
        return self.data_dir / "arbiter"


@dataclass(frozen=True, slots=True)
class PlatformPaths:
    """Files and directories in one data directory."""

    data_dir: Path

    @property
    def record_path(self) -> Path:
        """Choices of the platform: layout version, options, address, ports."""
        return self.data_dir / "platform.json"

    @property
    def lock_path(self) -> Path:
        """Lock of the `up` or `down` that works on the platform."""
        return self.data_dir / "lock"

    @property
    def pki_dir(self) -> Path:
        """CAs of etcd and the certificates that they issued."""
        return self.data_dir / "pki"

    @property
    def compute_credentials(self) -> Path:
        """Credentials of the compute cluster."""
        return self.pki_dir / "compute"

    @property
    def compute_dir(self) -> Path:
        """Files of the compute cluster's control plane; all can be rebuilt."""
        return self.data_dir / "compute"

    @property
    def etcd_dir(self) -> Path:
        """Database of etcd, with the state of every cluster."""
        return self.data_dir / "etcd"

    @property
    def hollow_dir(self) -> Path:
        """KWOK's configuration, certificates, and the log that it serves."""
        return self.data_dir / "hollow"

    @property
    def node_dir(self) -> Path:
        """Files of the real node."""
        return self.data_dir / "node"

    @property
    def admin_kubeconfig(self) -> Path:
        """Admin kubeconfig of the compute cluster, with which the CLI also reaches the management cluster."""
        return self.data_dir / "compute.kubeconfig"

    @property
    def provisioner_kubeconfig(self) -> Path:
        """Kubeconfig of the volume provisioner."""
        return self.data_dir / "provisioner.kubeconfig"

    @property
    def volumes_dir(self) -> Path:
        """Directory of persistent volumes, one subdirectory each."""
        return self.data_dir / "volumes"

    @property
    def tenants_dir(self) -> Path:
        """Files of tenants' control planes, one directory each; all can be rebuilt."""
        return self.data_dir / "tenants"

    @property
    def gateway(self) -> GatewayPaths:
        """Files of the gateway."""
        return GatewayPaths(self.data_dir)

    @property
    def conformance_dir(self) -> Path:
        """Outcomes of conformance cases, with the suite's logs and images."""
        return self.data_dir / "conformance"

    def list_all(self) -> list[Path]:
        """Return all paths of a platform; the record is near the end, so that a removal can be repeated."""
        supervisor = SupervisorPaths(self.data_dir)
        folders = (
            self.pki_dir,
            self.compute_dir,
            self.etcd_dir,
            self.hollow_dir,
            self.node_dir,
            self.gateway.arbiter_dir,
            self.volumes_dir,
            self.conformance_dir,
        )
        kubeconfigs = (self.admin_kubeconfig, self.gateway.kubeconfig, self.provisioner_kubeconfig)
        chart = (self.gateway.chart_values, self.gateway.compute_cluster)
        files = (
            *kubeconfigs,
            *chart,
            self.gateway.config_file,
            self.gateway.lock_file,
            self.record_path,
            self.lock_path,
        )
        return [*folders, self.tenants_dir, supervisor.run_dir, supervisor.log_dir, *files]
