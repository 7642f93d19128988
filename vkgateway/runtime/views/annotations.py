"""Annotations in which the reconcilers record their state on compute objects."""

from typing import Final

FORWARDED: Final = "vkgateway.io/forwarded"
"""On a pod: fingerprint of the tenant pod's labels, annotations and spec that were forwarded last."""

REQUESTS: Final = "vkgateway.io/requests"
"""On a pod: requests that it was admitted with, as JSON of resource names to thousandths."""

AMOUNTS: Final = "vkgateway.io/amounts"
"""On a pod: checksum of the containers' resources that were forwarded last."""

EVICTED: Final = "vkgateway.io/evicted"
"""On a pod: why the gateway evicts it, as `Reason: message`; set with the notice."""

LOG_TAILS: Final = "vkgateway.io/log-tails"
"""On a pod that is deleted without a request of its tenant: the last lines of its logs, as JSON by container."""

EVICTED_FOR: Final = "vkgateway.io/evicted-for"
"""On an evicted pod: the gang for which it is evicted."""

GANG: Final = "vkgateway.io/admitted-gang"
"""On a pod: its gang within the tenant when it was admitted. What its marks say later does not change that."""

BEHIND: Final = "vkgateway.io/behind"
"""On a pod that was started in a gang's reservation (backfill): that gang, whose start evicts the pod."""

RETAKEN: Final = "vkgateway.io/retaken"
"""On a pod that no node accepted in time: it is removed, and its end is not mirrored."""

SOURCE_VERSION: Final = "vkgateway.io/source-version"
"""On a copied ConfigMap or Secret: resource version of its source in the tenant cluster."""

TOKEN_OF: Final = "vkgateway.io/token-of"  # noqa: S105 - a key, no token
"""On a Secret with service account tokens: name of their tenant pod."""

NODES: Final = "vkgateway.io/nodes"
"""On a bound claim: the nodes that can reach its volume, as JSON of the volume's node affinity."""

REFRESH_AT: Final = "vkgateway.io/refresh-at"
"""On a Secret with service account tokens: Unix seconds at which they must be refreshed."""
