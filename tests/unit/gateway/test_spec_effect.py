"""The verdict on parts of a Tenant's spec without an effect: no pools, empty pools, missing storage classes."""

from __future__ import annotations

from typing import Any

import pytest

from vkgateway.api.objects import Meta
from vkgateway.api.types import (
    ComputeCluster,
    ComputeClusterSpec,
    ComputeClusterStatus,
    Pool,
    PoolStatus,
    Tenant,
    TenantPolicy,
    TenantPool,
    TenantSpec,
)
from vkgateway.tenants.controller import effect_verdict

A100, V100 = TenantPool(name="a100"), TenantPool(name="v100")
CLASSES = {"local": ["fast", "slow"]}


def cluster() -> ComputeCluster:
    pools = (Pool(name="a100", node_selector={"gpu": "a100"}), Pool(name="v100", node_selector={"gpu": "v100"}))
    status = (PoolStatus(name="a100", nodes=2), PoolStatus(name="v100"))
    return ComputeCluster(
        metadata=Meta(name="local"),
        spec=ComputeClusterSpec(pools=pools),
        status=ComputeClusterStatus(pools=status),
    )


def told(*pools: TenantPool, classes: Any = CLASSES, **policy: Any) -> tuple[str, str]:
    spec = TenantSpec(pools=pools, policy=TenantPolicy(**policy))
    found = effect_verdict(
        Tenant(metadata=Meta(name="alpha"), spec=spec), computes={"local": cluster()}, classes=classes
    )
    return ("", "") if found is None else (found.reason, found.message)


@pytest.mark.parametrize(
    ("result", "reason", "words"),
    [
        (told(A100), "", ""),
        (told(A100, storage_classes=("fast", "*"), storage_class_names={"mine": "slow"}), "", ""),
        (told(A100, storage_classes=("nope",), classes={}), "", ""),
        (told(), "NoPools", "spec.pools is empty"),
        (told(A100, V100), "PoolWithoutNodes", "spec.pools[1]: pool 'v100' of compute cluster 'local' has no nodes"),
        (told(V100), "PoolWithoutNodes", "label nodes with gpu=v100"),
        (told(A100, storage_classes=("nope",)), "StorageClassMissing", "storageClasses: nope: no compute cluster"),
        (told(A100, storage_class_names={"m": "no"}), "StorageClassMissing", "storageClassNames: no:"),
        (told(A100, storage_classes=("nope",)), "StorageClassMissing", "available: fast, slow"),
    ],
)
def test_condition_names_field_value_and_way_out(result: tuple[str, str], reason: str, words: str) -> None:
    assert result[0] == reason
    assert words in result[1]
