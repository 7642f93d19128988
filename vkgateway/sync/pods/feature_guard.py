"""Dry runs that detect feature-gated fields which a compute cluster would drop.

API servers drop such fields silently, and the version does not tell which gates are enabled. Pods and patches with such
fields are therefore tried in a dry run first. Retained fields are cached (`ComputeLink.kept_features`), so that few
pods need a dry run. Dropped fields are not cached, so that an enabled gate takes effect immediately.
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
    """Return the fields that the compute cluster would drop from a new pod. Raises ApiError, as the creation would."""

    async def dry_run() -> bytes:
        return await link.client.create(resources.PODS, pod, namespace=pod["metadata"]["namespace"], dry_run=True)

    return await _find_lost_fields(link, pod["spec"], dry_run)


async def fields_lost_on_patch(
    link: ComputeLink, pod: Meta, patch: Object, subresource: Subresource
) -> tuple[FeatureGatedField, ...]:
    """Return the fields that it would drop from a strategic merge patch. Raises ApiError, as the patch would."""

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
