"""The one real node of the embedded platform: kubelet, containerd, CNI, kube-proxy and CoreDNS."""

from vkgateway.local.realnode.node import RealNode
from vkgateway.local.realnode.options import PROGRAMS, RealNodeOptions

__all__ = ["PROGRAMS", "RealNode", "RealNodeOptions"]
