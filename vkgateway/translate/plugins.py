"""Annotations by which network plug-ins, runtimes, nodes and clouds act on a pod beyond its spec."""

from collections.abc import Sequence
from typing import Final

PLUGIN_PREFIXES: Final = (
    # Networks: additional networks, fixed addresses, tunnels and policies of a pod.
    "cni.cilium.io/",
    "cni.projectcalico.org/",
    "io.cilium",
    "ipam.cilium.io/",
    "ipam.spidernet.io/",
    "k8s.ovn.org/",
    "k8s.v1.cni.cncf.io/",
    "networking.gke.io/",
    "ovn.kubernetes.io/",
    "policy.cilium.io/",
    "v1.multus-cni.io/",
    "vpc.amazonaws.com/",
    # Runtimes: devices, mounts, hooks, sandbox virtual machines.
    "cdi.k8s.io/",
    "cpu-c-states.crio.io",
    "cpu-freq-governor.crio.io",
    "cpu-load-balancing.crio.io",
    "cpu-quota.crio.io",
    "dev.gvisor.",
    "devices.nri.",
    "io.katacontainers.",
    "io.kubernetes.cri-o.",
    "io.kubernetes.cri.",
    "irq-load-balancing.crio.io",
    "mounts.nri.",
    "nvidia.cdi.k8s.io/",
    "run.oci.",
    "ulimits.nri.",
    # Kubelets record the source of a pod here.
    "kubernetes.io/config.",
    # Clouds and vaults: any pod that names an identity gets it.
    "azure.workload.identity/",
    "eks.amazonaws.com/",
    "iam.amazonaws.com/",
    "vault.hashicorp.com/",
    # Meshes and agents that inject containers into pods, or run commands from a pod.
    "ad.datadoghq.com/",
    "admission.datadoghq.com/",
    "inject.istio.io/",
    "instrumentation.opentelemetry.io/",
    "linkerd.io/",
    "proxy.istio.io/",
    "sidecar.istio.io/",
    "traffic.sidecar.istio.io/",
    # Autoscalers that remove or keep nodes.
    "cluster-autoscaler.kubernetes.io/",
    "descheduler.alpha.kubernetes.io/",
    "karpenter.sh/",
    "scheduler.alpha.kubernetes.io/",
)
"""Prefixes of such annotations.

Labels with these prefixes are forwarded: Services of a tenant's mesh select by them.
"""


def tenant_only_plugins(allowed: Sequence[str]) -> tuple[str, ...]:
    """Return the plug-in prefixes that are not forwarded, if a policy allows those that begin with `allowed` (`*`:
    all).
    """
    if "*" in allowed:
        return ()
    return tuple(prefix for prefix in PLUGIN_PREFIXES if not prefix.startswith(tuple(filter(None, allowed))))
