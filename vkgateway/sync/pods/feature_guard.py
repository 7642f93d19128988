"""Asks compute clusters, before a pod is made or changed, whether they keep the fields that a feature gate guards.

What they drop, they drop in silence, and by its release alone nobody can tell: gates are switched. So who sets such a
field is tried in a dry run first. What is kept is remembered for a while (`ComputeLink.kept_features`), so that few
pods are tried; what is dropped is not, so that a gate which is switched on counts at once.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from vkgateway.kube import resources
from vkgateway.model.objects import Meta, Object
from vkgateway.sync.compute.link import ComputeLink
from vkgateway.sync.pods.pod_context import decode
from vkgateway.translate.feature_gates import FeatureGatedField, feature_gated_fields
from vkgateway.translate.subresources import Subresource


async def fields_lost_on_create(link: ComputeLink, pod: Object) -> tuple[FeatureGatedField, ...]:
    """What the compute cluster would drop of a pod that is to be made there. Raises ApiError, as its creation would."""

    async def dry_run() -> bytes:
        return await link.client.create(resources.PODS, pod, namespace=pod["metadata"]["namespace"], dry_run=True)

    return await _find_lost_fields(link, pod["spec"], dry_run)


async def fields_lost_on_patch(
    link: ComputeLink, pod: Meta, patch: Object, subresource: Subresource
) -> tuple[FeatureGatedField, ...]:
    """What it would drop of a strategic merge patch for one that stands there. Raises ApiError, as the patch would."""

    async def dry_run() -> bytes:
        return await link.client.patch(
            resources.PODS,
            pod.name,
            patch,
            namespace=pod.namespace,
            subresource=subresource,
            kind="strategic",
            dry_run=True,
        )

    return await _find_lost_fields(link, patch["spec"], dry_run)


async def _find_lost_fields(
    link: ComputeLink, spec: Mapping[str, Any], dry_run: Callable[[], Awaitable[bytes]]
) -> tuple[FeatureGatedField, ...]:
    asked = [one for one in feature_gated_fields(spec) if one.gate not in link.kept_features]
    if not asked:
        return ()
    kept = set(feature_gated_fields(decode(await dry_run())["spec"]))
    lost = tuple(one for one in asked if one not in kept)
    link.kept_features |= {one.gate for one in asked} - {one.gate for one in lost}
    return lost
