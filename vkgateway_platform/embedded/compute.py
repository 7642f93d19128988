"""Control plane of the embedded compute cluster: its spec, its files, its processes, its first objects."""

from __future__ import annotations

import datetime
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import yaml

from vkgateway.api.names import API_VERSION
from vkgateway.api.types import DEFAULT_COMPUTE_CLUSTER
from vkgateway.kube import kubeconfig
from vkgateway.planes.drivers.process.driver import component_process
from vkgateway.planes.drivers.process.plane_directory import write_plane_files
from vkgateway.planes.plane import ComponentName, ControlPlaneSpec, Tuning, compute_plane_spec
from vkgateway.planes.plane_files import Authorities, PlaneFiles, admin_kubeconfig
from vkgateway.planes.supervisor.spec import ProcessSpec
from vkgateway.serve import management_policies, rbac, recommended_policies
from vkgateway_platform.embedded import core_limit, etcd
from vkgateway_platform.embedded.hollow.nodes import DOMAIN_LABEL, MACHINES, POOL_LABEL, ZONE_LABEL
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import GATEWAY, GATEWAY_USER, PlatformPki
from vkgateway_platform.embedded.realnode.options import NodeNetwork
from vkgateway_platform.embedded.record import PlatformRecord

GROUP = "compute"

# Every tenant pod passes through these components, so their clients are not throttled.
_UNTHROTTLED = {"kube-api-qps": "2000", "kube-api-burst": "4000"}
_INFLIGHT = {"max-requests-inflight": "1600", "max-mutating-requests-inflight": "800"}


def _component_tuning() -> Mapping[ComponentName, Tuning]:
    """Return the tuning. There is one instance of each component, so heaps grow further than those of tenants before a
    garbage collection; GOGC is in percent.
    """
    return {
        "apiserver": Tuning(flags=_INFLIGHT, env={"GOGC": "100", **core_limit.limit_cores()}),
        "controller-manager": Tuning(flags=_UNTHROTTLED, env={"GOGC": "100", **core_limit.limit_cores()}),
        "scheduler": Tuning(flags=_UNTHROTTLED, env={"GOGC": "200", **core_limit.limit_cores()}),
    }


def plane_spec(record: PlatformRecord) -> ControlPlaneSpec:
    """Return the spec of the compute cluster's control plane."""
    return compute_plane_spec(
        address=record.address,
        port=record.ports["compute-api"],
        etcd_endpoints=(etcd.client_url(record.ports["etcd"]),),
        service_cidr=NodeNetwork(record.number).service_subnet,
        kubernetes_version=record.kubernetes_version,
        tuning=_component_tuning(),
    )


def write_plane(
    paths: PlatformPaths, *, record: PlatformRecord, pki: PlatformPki, now: datetime.datetime
) -> PlaneFiles:
    """Write the control plane's files, the admin kubeconfig for the command line, and the gateway's kubeconfig."""
    shape = plane_spec(record)
    files = write_plane_files(
        paths.compute_dir,
        plane=shape,
        credentials=pki.compute,
        # The cluster's CA signs the certificates of its kubelets too.
        authorities=Authorities(etcd=pki.etcd, kubelet=pki.compute.ca),
        now=now,
    )
    kubeconfig.write_file(paths.admin_kubeconfig, admin_kubeconfig(shape, credentials=pki.compute))
    gateway = kubeconfig.build_document(
        shape.cluster,
        server=shape.server_url,
        ca=pki.compute.ca.cert_pem,
        cert=(paths.pki_dir / f"{GATEWAY}.crt").read_bytes(),
        key=(paths.pki_dir / f"{GATEWAY}.key").read_bytes(),
        user=GATEWAY_USER,
    )
    kubeconfig.write_file(paths.gateway.kubeconfig, gateway)
    return files


def process_spec(
    name: ComponentName, *, record: PlatformRecord, files: PlaneFiles, programs: Mapping[str, Path]
) -> ProcessSpec:
    """Return the spec of one of the control plane's processes."""
    return component_process(name, group=GROUP, plane=plane_spec(record), files=files, programs=programs)


def initial_objects(record: PlatformRecord, *, pools: Iterable[str]) -> list[dict[str, Any]]:
    """Return the first objects: types, roles, policies, the ComputeCluster with `pools`, the API server's endpoints."""
    return [
        *api_definitions(),
        *rbac.compute_roles(),
        *rbac.management_roles(),
        *rbac.state_reader_roles(),
        *lean_pods(record),
        *management_policies.deletion_protection(),
        compute_cluster(pools, hollow=record.hollow_nodes),
        *own_endpoints(record),
    ]


def api_definitions() -> list[dict[str, Any]]:
    """Return the definitions of Tenant and ComputeCluster."""
    folder = resources.files("vkgateway.api") / "crds"
    texts = (file.read_text() for file in sorted(folder.iterdir(), key=lambda f: f.name) if file.name.endswith(".yaml"))
    return [document for text in texts for document in yaml.safe_load_all(text) if document]


def lean_pods(record: PlatformRecord) -> list[dict[str, Any]]:
    """Return the policy that keeps compute pods small; nothing for releases that lack such policies."""
    version = plane_spec(record).policies_version
    return recommended_policies.lean_pods_policy(version) if version else []


def compute_cluster(pools: Iterable[str], *, hollow: Mapping[str, int]) -> dict[str, Any]:
    """Return the ComputeCluster object of the platform's own cluster.

    `hollow` is the number of nodes of each hollow pool.
    """
    return {
        "apiVersion": API_VERSION,
        "kind": "ComputeCluster",
        "metadata": {"name": DEFAULT_COMPUTE_CLUSTER},
        "spec": {"pools": [_pool_spec(name, hollow) for name in pools]},
    }


def _pool_spec(name: str, hollow: Mapping[str, int]) -> dict[str, Any]:
    """Return a pool. Hollow nodes have labels for network and zone; a pool with several zones has a virtual node per
    zone.
    """
    pool: dict[str, Any] = {"name": name, "nodeSelector": {POOL_LABEL: name}, "virtualNodesBy": ""}
    if name not in MACHINES:
        return pool
    differ = min(MACHINES[name].domains, hollow[name]) > 1
    return {**pool, "levels": [DOMAIN_LABEL], "virtualNodesBy": ZONE_LABEL if differ else ""}


def own_endpoints(record: PlatformRecord) -> list[dict[str, Any]]:
    """Return the endpoints of the Service `kubernetes`, since the API server publishes none.

    The Endpoints object is for programs that still read it, and is not mirrored into a second slice.
    """
    slice_of_api = {
        "apiVersion": "discovery.k8s.io/v1",
        "kind": "EndpointSlice",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"kubernetes.io/service-name": "kubernetes"},
        },
        "addressType": "IPv6" if ":" in record.address else "IPv4",
        "endpoints": [{"addresses": [record.address], "conditions": {"ready": True}}],
        "ports": [{"name": "https", "port": record.ports["compute-api"], "protocol": "TCP"}],
    }
    endpoints = {
        "apiVersion": "v1",
        "kind": "Endpoints",
        "metadata": {
            "name": "kubernetes",
            "namespace": "default",
            "labels": {"endpointslice.kubernetes.io/skip-mirror": "true"},
        },
        "subsets": [{"addresses": [{"ip": record.address}], "ports": slice_of_api["ports"]}],
    }
    return [slice_of_api, endpoints]
