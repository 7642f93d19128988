"""Annotations by which network plug-ins, runtimes, nodes and clouds act on a pod beyond what its spec asks for."""

from collections.abc import Sequence
from typing import Final

PLUGIN_PREFIXES: Final = (
    # Networks: further ones, fixed addresses, tunnels and policies of a pod's own.
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
    # Runtimes: devices, mounts, hooks, the machine under a sandbox.
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
    # Kubelets tell by these where a pod is from.
    "kubernetes.io/config.",
    # Clouds and vaults: an identity for whoever names it.
    "azure.workload.identity/",
    "eks.amazonaws.com/",
    "iam.amazonaws.com/",
    "vault.hashicorp.com/",
    # Meshes and agents that put containers into pods, or run what a pod tells them.
    "ad.datadoghq.com/",
    "admission.datadoghq.com/",
    "inject.istio.io/",
    "instrumentation.opentelemetry.io/",
    "linkerd.io/",
    "proxy.istio.io/",
    "sidecar.istio.io/",
    "traffic.sidecar.istio.io/",
    # Who takes nodes away, and keeps them.
    "cluster-autoscaler.kubernetes.io/",
    "descheduler.alpha.kubernetes.io/",
    "karpenter.sh/",
    "scheduler.alpha.kubernetes.io/",
)
"""How such annotations begin. Labels of these names go down: Services of a tenant's own mesh select by them."""


def tenant_only_plugins(allowed: Sequence[str]) -> tuple[str, ...]:
    """Of these prefixes those that stay above, where a policy allows all that begin with one of `allowed`; `*`: all."""
    if "*" in allowed:
        return ()
    return tuple(prefix for prefix in PLUGIN_PREFIXES if not prefix.startswith(tuple(filter(None, allowed))))
