"""Ownership of objects in a compute cluster: their tenant, and the tenant object that they belong to."""

from __future__ import annotations

from typing import Literal

from vkgateway.api.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, TENANT_LABEL, compute_namespace
from vkgateway.api.objects import Meta, NamespaceView
from vkgateway.kube import resources
from vkgateway.kube.resources import Resource
from vkgateway.runtime.views.annotations import TOKEN_OF

Key = tuple[str, str]
"""Namespace and name in the tenant cluster."""

CopyKind = Literal["configmaps", "secrets"]
COPY_RESOURCES: dict[CopyKind, Resource] = {"configmaps": resources.CONFIG_MAPS, "secrets": resources.SECRETS}

Reference = tuple[CopyKind, str, str]
"""Kind, tenant namespace and name of something that a pod refers to."""


def owned_by(tenant: str, metadata: Meta) -> bool:
    """Return whether a namespaced compute object is a tenant's: its label, annotations and namespace must agree."""
    namespace = metadata.annotations.get(NAMESPACE_ANNOTATION, "")
    return (
        bool(tenant)
        and metadata.labels.get(TENANT_LABEL) == tenant
        and metadata.namespace == compute_namespace(tenant, namespace)
    )


def is_copy(tenant: str, metadata: Meta) -> bool:
    """Return whether a compute object is a copy of a tenant's object. A token Secret belongs to a tenant but is no
    copy.
    """
    return owned_by(tenant, metadata) and TOKEN_OF not in metadata.annotations


def source_key(metadata: Meta) -> Key:
    """Return the namespace and name of the tenant object of a compute object."""
    return metadata.annotations.get(NAMESPACE_ANNOTATION, ""), metadata.annotations.get(NAME_ANNOTATION, "")


def namespace_owner(view: NamespaceView) -> str:
    """Return the tenant of a compute namespace, or "" if its label, annotation and name do not agree."""
    tenant = view.metadata.labels.get(TENANT_LABEL, "")
    original = view.metadata.annotations.get(NAME_ANNOTATION, "")
    return tenant if view.metadata.name == compute_namespace(tenant, original) else ""
