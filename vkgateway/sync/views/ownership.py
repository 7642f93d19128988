"""Whose the objects of a compute cluster are, and what of the tenant's they stand for."""

from __future__ import annotations

from typing import Literal

from vkgateway.kube import resources
from vkgateway.kube.resources import Resource
from vkgateway.model.names import NAME_ANNOTATION, NAMESPACE_ANNOTATION, TENANT_LABEL, compute_namespace
from vkgateway.model.objects import Meta, NamespaceView
from vkgateway.sync.views.annotations import TOKEN_OF

Key = tuple[str, str]
"""Namespace and name in the tenant."""

CopyKind = Literal["configmaps", "secrets"]
COPY_RESOURCES: dict[CopyKind, Resource] = {"configmaps": resources.CONFIG_MAPS, "secrets": resources.SECRETS}

Reference = tuple[CopyKind, str, str]
"""Kind, tenant namespace and name of something that a pod refers to."""


def owned_by(tenant: str, metadata: Meta) -> bool:
    """Whether a namespaced compute object is a tenant's: its label, annotations and namespace must agree."""
    namespace = metadata.annotations.get(NAMESPACE_ANNOTATION, "")
    return (
        bool(tenant)
        and metadata.labels.get(TENANT_LABEL) == tenant
        and metadata.namespace == compute_namespace(tenant, namespace)
    )


def is_copy(tenant: str, metadata: Meta) -> bool:
    """Whether a compute object is the copy of a tenant's object; a Secret of tokens is a tenant's, but no copy."""
    return owned_by(tenant, metadata) and TOKEN_OF not in metadata.annotations


def source_key(metadata: Meta) -> Key:
    """Namespace and name of the tenant object that a compute object stands for."""
    return metadata.annotations.get(NAMESPACE_ANNOTATION, ""), metadata.annotations.get(NAME_ANNOTATION, "")


def namespace_owner(view: NamespaceView) -> str:
    """The tenant whose namespace it is, or nothing where label, annotation and name do not agree."""
    tenant = view.metadata.labels.get(TENANT_LABEL, "")
    original = view.metadata.annotations.get(NAME_ANNOTATION, "")
    return tenant if view.metadata.name == compute_namespace(tenant, original) else ""
