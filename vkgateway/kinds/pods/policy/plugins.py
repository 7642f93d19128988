"""Keys by which network plug-ins, runtimes, nodes and clouds act on a pod beyond its spec."""

from collections.abc import Sequence
from functools import lru_cache
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
    "kubernetes.io/egress-bandwidth",
    "kubernetes.io/ingress-bandwidth",
    "networking.gke.io/",
    "ovn.kubernetes.io/",
    "policy.cilium.io/",
    "v1.multus-cni.io/",
    "vpc.amazonaws.com/",
    # Runtimes: devices, mounts, hooks, cgroups, sandbox virtual machines.
    "blockio.resources.beta.kubernetes.io/",
    "cdi.k8s.io/",
    "cgroup2-mount-hierarchy-rw.crio.io",
    "cpu-c-states.crio.io",
    "cpu-freq-governor.crio.io",
    "cpu-load-balancing.crio.io",
    "cpu-quota.crio.io",
    "cpu-shared.crio.io",
    "dev.gvisor.",
    "devices.crio.io",
    "devices.nri.",
    "disable-fips.crio.io",
    "io.containerd.",
    "io.katacontainers.",
    "io.kubernetes.cri-o.",
    "io.kubernetes.cri.",
    "irq-load-balancing.crio.io",
    "link-logs.crio.io",
    "mounts.nri.",
    "nvidia.cdi.k8s.io/",
    "platform-runtime-path.crio.io",
    "pod-linux-overhead.crio.io",
    "pod-linux-resources.crio.io",
    "rdt.resources.beta.kubernetes.io/",
    "resources.workload.openshift.io/",
    "run.oci.",
    "seccomp-notifier-action.crio.io",
    "seccomp-profile.crio.io",
    "seccomp-profile.kubernetes.cri-o.io",
    "shm-size.crio.io",
    "spoofed.crio.io",
    "target.workload.openshift.io/",
    "try-skip-volume-selinux-label.crio.io",
    "ulimits.nri.",
    "umask.crio.io",
    "unified-cgroup.crio.io",
    "userns-mode.crio.io",
    ".cri-resource-manager.intel.com/",
    ".nri.io/",
    # Schedulers and device plug-ins that share or choose devices: some take the devices to allocate from the pod.
    "ALIYUN_COM_GPU_",
    "cambricon.com/",
    "enflame.com/",
    "gas-container-",
    "gpu-fraction",
    "gpu-memory",
    "hami.io/",
    "huawei.com/",
    "hygon.com/",
    "iluvatar.ai/",
    "metax-tech.com/",
    "mthreads.com/",
    "nvidia.com/",
    "received-resource-type",
    "sharedgpu/",
    "tencent.com/",
    # Kubelets record the source of a pod here.
    "kubernetes.io/config.",
    # KWOK, which plays the kubelet of hollow nodes: it leaves a pod alone, or delays and fails it.
    "kwok.x-k8s.io/",
    ".stage.kwok.x-k8s.io/",
    # Clouds and vaults: any pod that names an identity gets it.
    "azure.workload.identity/",
    "eks.amazonaws.com/",
    "iam.amazonaws.com/",
    "vault.hashicorp.com/",
    # Meshes and agents that inject containers into pods, or run commands from a pod.
    "ad.datadoghq.com/",
    "admission.datadoghq.com/",
    "ambient.istio.io/",
    "inject.istio.io/",
    "instrumentation.opentelemetry.io/",
    "istio.io/",
    "linkerd.io/",
    "networking.istio.io/",
    "prometheus.istio.io/",
    "proxy.istio.io/",
    "sidecar.istio.io/",
    "traffic.sidecar.istio.io/",
    # Autoscalers that remove or keep nodes.
    "cluster-autoscaler.kubernetes.io/",
    "descheduler.alpha.kubernetes.io/",
    "descheduler.kubernetes.io/",
    "karpenter.sh/",
    "scheduler.alpha.kubernetes.io/",
)
"""Prefixes of such annotations. An entry that begins with a dot matches the keys of all subdomains."""

PLUGIN_LABEL_PREFIXES: Final = (
    "admission.datadoghq.com/",
    "azure.workload.identity/",
    "eks.amazonaws.com/",
    "istio.io/",
    "kwok.x-k8s.io/",
    "sidecar.istio.io/",
    ".stage.kwok.x-k8s.io/",
)
"""Those of `PLUGIN_PREFIXES` by which the same programs select pods by labels. Such labels are renamed.

Labels with other prefixes are forwarded as they are, because no program acts on them.
"""

_SUBDOMAINS: Final = tuple(entry for entry in PLUGIN_PREFIXES if entry.startswith("."))
_KWOK: Final = "kwok.x-k8s.io/"

CPU_ANNOTATION: Final = "kwok.x-k8s.io/usage-cpu"
MEMORY_ANNOTATION: Final = "kwok.x-k8s.io/usage-memory"
"""Simulated usage of a pod's containers on hollow nodes. The gateway reads it, and nothing else depends on it."""


def tenant_only_plugins(allowed: Sequence[str], entries: Sequence[str] = PLUGIN_PREFIXES) -> tuple[str, ...]:
    """Return those of the plug-in prefixes that are not forwarded, if a policy allows those that begin with `allowed`
    (`*`: all).
    """
    if "*" in allowed:
        return ()
    return tuple(prefix for prefix in entries if not prefix.startswith(tuple(filter(None, allowed))))


@lru_cache(maxsize=8192)
def is_tenant_only_key(key: str, tenant_only: tuple[str, ...]) -> bool:
    """Return whether the key of a label or annotation has one of these prefixes, or one of these subdomains."""
    if key in (CPU_ANNOTATION, MEMORY_ANNOTATION):
        return key.startswith(tuple(prefix for prefix in tenant_only if prefix != _KWOK))
    return key.startswith(tenant_only) or any(entry in key and entry in tenant_only for entry in _SUBDOMAINS)
