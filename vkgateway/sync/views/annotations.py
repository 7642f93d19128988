"""Annotations by which the reconcilers remember, on compute objects themselves, what they have done."""

from typing import Final

FORWARDED: Final = "vkgateway.io/forwarded"
"""On a pod: fingerprint of the tenant pod's labels, annotations and spec that it was last made equal to."""

REQUESTS: Final = "vkgateway.io/requests"
"""On a pod: what it was admitted with, as JSON of resource names to thousandths."""

AMOUNTS: Final = "vkgateway.io/amounts"
"""On a pod: check sum of the resources that the tenant's containers asked for when they were last brought down."""

EVICTED: Final = "vkgateway.io/evicted"
"""On a pod: why the gateway itself takes it away, as `Reason: message`; there from the notice on."""

LOG_TAILS: Final = "vkgateway.io/log-tails"
"""On a pod that is deleted though its tenant did not ask for it: the last lines of its logs, as JSON by container."""

EVICTED_FOR: Final = "vkgateway.io/evicted-for"
"""On a pod that is told to go: the gang that it makes room for."""

BEHIND: Final = "vkgateway.io/behind"
"""On a pod that was started in the place kept for a gang: that gang, for which it goes as soon as that can start."""

RETAKEN: Final = "vkgateway.io/retaken"
"""On a pod that no node took in time: it is removed, stands for nobody any more, and its end is told to nobody."""

SOURCE_VERSION: Final = "vkgateway.io/source-version"
"""On a copied ConfigMap or Secret: the resource version of the tenant's object that it was made from."""

TOKEN_OF: Final = "vkgateway.io/token-of"  # noqa: S105 - a key, no token
"""On a Secret of service account tokens: the name of the tenant pod that they are for."""

NODES: Final = "vkgateway.io/nodes"
"""On a bound claim: what its volume says of the nodes that can reach it, as JSON of the volume's node affinity."""

REFRESH_AT: Final = "vkgateway.io/refresh-at"
"""On a Secret of service account tokens: Unix seconds at which they are due for refreshing."""
