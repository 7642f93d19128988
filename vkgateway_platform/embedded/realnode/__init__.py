"""The one real node of the embedded platform: kubelet, containerd, CNI, kube-proxy and CoreDNS."""

from vkgateway_platform.embedded.realnode.node import RealNode
from vkgateway_platform.embedded.realnode.options import PROGRAMS, RealNodeOptions

__all__ = ["PROGRAMS", "RealNode", "RealNodeOptions"]
