"""Tenants' name servers as pods: a CoreDNS per tenant and compute cluster, behind its own Service."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Final

import structlog

from vkgateway.api.clusters import ClusterIdentity
from vkgateway.api.errors import NotPublishedError, UnavailableError
from vkgateway.api.names import CONTROL_PLANE_LABEL
from vkgateway.api.objects import decode_object
from vkgateway.kinds.policies.egress_rules import NameServerRange
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.resources import DEPLOYMENTS, DISRUPTION_BUDGETS, NETWORK_POLICIES, SECRETS, SERVICES, Resource
from vkgateway.planes.drivers.base import ServerEndpoint
from vkgateway.planes.drivers.kubernetes.addresses import ServerAddresses
from vkgateway.planes.drivers.kubernetes.applied_objects import AppliedObjects
from vkgateway.planes.drivers.kubernetes.cluster import ScheduledPods, read_scheduling, read_secret
from vkgateway.planes.drivers.kubernetes.mounted_files import MountedFiles
from vkgateway.planes.drivers.kubernetes.names import FILES, MOUNT, component_labels, pod_selector
from vkgateway.planes.drivers.kubernetes.network_policies import name_server_policy
from vkgateway.planes.drivers.kubernetes.objects import (
    Document,
    component_metadata,
    deployment,
    disruption_budget,
    secret,
)
from vkgateway.planes.drivers.kubernetes.parameters import Parameters
from vkgateway.planes.drivers.kubernetes.pods import (
    container_security,
    pod_defaults,
    secret_volume,
    spread_constraints,
)
from vkgateway.planes.drivers.kubernetes.publisher import read_outside_endpoints, read_published_type
from vkgateway.planes.name_server_config import name_server_environment, render_corefile, render_hosts_file
from vkgateway.planes.plane_files import COREDNS, PlaneFiles

_log = structlog.get_logger(__name__)

_PORT: Final = 1053
"""Port at which CoreDNS listens in its pod: no privileged one."""
_DNS_PORT: Final = 53
_PREFIX: Final = "names-"
_CONFIG: Final = MOUNT.parent / "coredns"


class PodNameServers:
    """Name servers in the namespaces of control planes; the driver removes them with the namespace.

    They forward other names to `forwarder`, and answer clients in `sources` only, or all if it is empty.
    """

    listening_range: NameServerRange | None = None
    """Each name server has its own address; a NetworkPolicy selects its clients."""

    def __init__(
        self,
        client: Client,
        addresses: ServerAddresses,
        applied: AppliedObjects,
        *,
        parameters: Parameters,
        forwarder: str,
        sources: Sequence[str] = (),
    ) -> None:
        self._client = client
        self._addresses = addresses
        self._objects = applied
        self._mounted = MountedFiles(client)
        self._parameters = parameters
        self._forwarder = forwarder
        self._sources = tuple(sources)

    async def ensure_server(
        self, tenant: str, cluster: ClusterIdentity, addresses: Mapping[str, str]
    ) -> Collection[ServerEndpoint]:
        """See `NameServers`: the addresses of the ready pods.

        Also raises UnavailableError if the tenant has no certificates yet.
        """
        namespace = f"{self._parameters.namespace_prefix}{tenant}"
        service_type = await self._service_type(cluster, namespace=namespace)
        files = PlaneFiles(MOUNT, await read_secret(self._client, FILES, namespace=namespace))
        if not files.has_kubeconfig(COREDNS):
            raise UnavailableError(f"the name server of tenant {tenant!r} has no certificate yet")
        name = f"{_PREFIX}{cluster.name}"
        scheduling = await read_scheduling(self._client, namespace=namespace)
        config = {"Corefile": self._render_corefile(files).encode(), "hosts": render_hosts_file(addresses).encode()}
        await self._objects.apply(
            [
                name_server_policy(
                    tenant, name, namespace=namespace, port=_PORT, is_outside=service_type != "ClusterIP"
                ),
                secret(name, config, labels=component_labels(tenant, name), namespace=namespace),
                _service(tenant, name, namespace=namespace, kind=service_type),
                deployment(
                    tenant,
                    name,
                    namespace=namespace,
                    pod=self._render_pod(tenant, name, config=config, files=files, scheduling=scheduling),
                    replicas=scheduling.replicas,
                ),
                *([disruption_budget(tenant, name, namespace=namespace)] if scheduling.replicas > 1 else []),
            ],
        )
        selector = pod_selector(tenant, name)
        await self._mounted.deliver(config, namespace=namespace, component=name, labels=selector)
        if service_type == "ClusterIP":
            found = await self._addresses.endpoints_for(cluster, namespace=namespace, service=name)
        else:
            found = await read_outside_endpoints(self._client, name, tenant=tenant, component=name, namespace=namespace)
        if not found:
            raise UnavailableError(f"the name server of tenant {tenant!r} is not ready yet")
        return found

    def _render_pod(
        self, tenant: str, name: str, *, config: Mapping[str, bytes], files: PlaneFiles, scheduling: ScheduledPods
    ) -> Document:
        """Return the spec of a pod that is scheduled like those of the control plane."""
        spread = {"topologySpreadConstraints": spread_constraints(tenant, name)} if scheduling.replicas > 1 else {}
        pod = _pod(name, config=config, files=files, parameters=self._parameters)
        return {**pod, **scheduling.fields, **spread}

    async def _service_type(self, cluster: ClusterIdentity, *, namespace: str) -> str:
        """Return the type of the name server's Service: that of the API server's exposure for another cluster.

        A name server does not stay exposed when its API server is not.

        Raises:
            NotPublishedError: the API server is not exposed at an IP address.
        """
        if await self._addresses.is_management(cluster):
            return "ClusterIP"
        if exposed := await read_published_type(self._client, namespace=namespace):
            return exposed
        name = f"{_PREFIX}{cluster.name}"
        if self._objects.is_known(SERVICES.kind, name, namespace=namespace):
            await self._remove_server(name, namespace=namespace)
        raise NotPublishedError(
            f"pods of compute cluster {cluster.name!r} cannot reach the tenant's name server, which has no address "
            "outside the management cluster; set spec.apiServer.exposure.type to LoadBalancer or NodePort"
        )

    async def remove_stale(self, clusters: Collection[str]) -> None:
        selector = f"{CONTROL_PLANE_LABEL},app.kubernetes.io/managed-by=vkgateway"
        async for page in self._client.list_pages(NETWORK_POLICIES, label_selector=selector):
            for policy in (decode_object(item).metadata for item in page.items):
                if policy.name.startswith(_PREFIX) and policy.name.removeprefix(_PREFIX) not in clusters:
                    await self._remove_server(policy.name, namespace=policy.namespace)

    async def _remove_server(self, name: str, *, namespace: str) -> None:
        self._objects.forget(namespace=namespace, name=name)
        self._mounted.forget(namespace=namespace, component=name)
        # The policy marks a name server: it is created first and deleted last.
        for resource in (DEPLOYMENTS, DISRUPTION_BUDGETS, SERVICES, SECRETS, NETWORK_POLICIES):
            await self._delete(resource, name, namespace=namespace)

    async def _delete(self, resource: Resource, name: str, *, namespace: str) -> None:
        try:
            await self._client.delete(resource, name, namespace=namespace, propagation_policy="Background")
        except errors.NotFound:
            return
        _log.info("object of a name server deleted", kind=resource.kind, namespace=namespace, name=name)

    def _render_corefile(self, files: PlaneFiles) -> str:
        return render_corefile(
            kubeconfig=files.kubeconfig_path(COREDNS),
            hosts=_CONFIG / "hosts",
            address="0.0.0.0",  # noqa: S104 - the address of the pod, which is not known in advance
            port=_PORT,
            forwarder=self._forwarder,
            sources=self._sources,
        )


def _service(tenant: str, name: str, *, namespace: str, kind: str) -> Document:
    """Return the Service of a name server, which must see the addresses of its clients."""
    ports = [
        {"name": f"dns-{protocol.lower()}", "port": _DNS_PORT, "targetPort": _PORT, "protocol": protocol}
        for protocol in ("UDP", "TCP")
    ]
    return {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": component_metadata(tenant, name, namespace=namespace),
        "spec": {
            "type": kind,
            "selector": pod_selector(tenant, name),
            "ports": ports,
            **({} if kind == "ClusterIP" else {"externalTrafficPolicy": "Local"}),
        },
    }


def _pod(name: str, *, config: Mapping[str, bytes], files: PlaneFiles, parameters: Parameters) -> Document:
    environment = name_server_environment(files, corefile=config["Corefile"].decode())
    container: Document = {
        "name": "coredns",
        "image": parameters.name_server_image,
        "imagePullPolicy": "IfNotPresent",
        "args": [f"-conf={_CONFIG / 'Corefile'}"],
        "env": [{"name": key, "value": value} for key, value in sorted(environment.items())],
        "resources": {"requests": {"cpu": "10m", "memory": "32Mi"}},
        # The official program carries this file capability, and does not start where it is not granted.
        "securityContext": container_security(added=["NET_BIND_SERVICE"]),
        "terminationMessagePolicy": "FallbackToLogsOnError",
        "readinessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 1},
        "livenessProbe": {"tcpSocket": {"port": _PORT}, "periodSeconds": 10, "failureThreshold": 6},
        "volumeMounts": [
            {"name": "files", "mountPath": str(MOUNT), "readOnly": True},
            {"name": "config", "mountPath": str(_CONFIG), "readOnly": True},
        ],
    }
    own_files = [f"{COREDNS}.crt", f"{COREDNS}.key", f"{COREDNS}.kubeconfig", "ca.crt"]
    volumes = [secret_volume("files", FILES, keys=own_files), secret_volume("config", name, keys=sorted(config))]
    return {**pod_defaults(parameters), "containers": [container], "volumes": volumes}
