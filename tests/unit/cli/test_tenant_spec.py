"""Tests of the options of `tenant create`."""

import pytest

from vkgateway.api.errors import InputError
from vkgateway.api.objects import Meta
from vkgateway.api.types import Tenant, TenantBudget, TenantPool, TenantSpec
from vkgateway.cli import tenant_spec


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("a100", TenantPool(name="a100")),
        ("a100.east", TenantPool(name="a100", compute_cluster="east")),
        ("a100:guarantee=cpu=4", TenantPool(name="a100", guarantee={"cpu": "4"})),
        (
            "a100.east:guarantee=nvidia.com/gpu=8,cpu=4,limit=nvidia.com/gpu=16,memory=1Ti",
            TenantPool(
                name="a100",
                compute_cluster="east",
                guarantee={"nvidia.com/gpu": "8", "cpu": "4"},
                limit={"nvidia.com/gpu": "16", "memory": "1Ti"},
            ),
        ),
        (
            "a100:guarantee=nvidia.com/gpu=21,weight=2.5,cells=1+4+2x8,limit=cpu=8",
            TenantPool(
                name="a100",
                guarantee={"nvidia.com/gpu": "21"},
                limit={"cpu": "8"},
                weight=2.5,
                cells=(8, 8, 4, 1),
            ),
        ),
        ("a100:guarantee=none,limit=none,cells=none", TenantPool(name="a100")),
        ("a100:limit=cpu=4,guarantee=cpu=2", TenantPool(name="a100", guarantee={"cpu": "2"}, limit={"cpu": "4"})),
    ],
)
def test_pools_are_parsed(text: str, expected: TenantPool) -> None:
    assert tenant_spec.parse_pool(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("A100", "'A100'"),
        ("a100.East", "'East'"),
        ("a100:cpu=4", "'cpu=4'"),
        ("a100:guarantee=cpu", "'cpu'"),
        ("a100:guarantee=cpu=many", "many"),
        ("a100:limit=cpu=-1", "-1 is negative"),
        ("a100:guarantee=", "''"),
        ("a100:weight=0", "weight 0"),
        ("a100:weight=-1", "weight -1"),
        ("a100:weight=nan", "weight nan"),
        ("a100:weight=much", "'much'"),
        ("a100:cells=", "cells ''"),
        ("a100:cells=8+", "'8+'"),
        ("a100:cells=0x8", "'0x8'"),
        ("a100:cells=-8", "'-8'"),
        ("a100:cells=2000x1", "more than 1024"),
    ],
)
def test_invalid_pools_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=r"--pool") as caught:
        tenant_spec.parse_pool(text)
    assert complaint in str(caught.value)


GPU_HOURS = "resource=nvidia.com/gpu,hours=1000"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (GPU_HOURS, TenantBudget(resource="nvidia.com/gpu", hours=1000)),
        ("hours=0.5,pool=a100,resource=x.io/nic", TenantBudget(resource="x.io/nic", hours=0.5, pool="a100")),
        ("resource=nvidia.com/gpu,hours=0", TenantBudget(resource="nvidia.com/gpu", hours=0)),
    ],
)
def test_budgets_are_parsed(text: str, expected: TenantBudget) -> None:
    assert tenant_spec.parse_budget(text) == expected


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("", "invalid part ''"),
        ("nvidia.com/gpu=1000", "invalid part 'nvidia.com/gpu=1000'"),
        ("resource=nvidia.com/gpu", "hours is missing"),
        ("hours=1000", "resource is missing"),
        (f"{GPU_HOURS},hours=2000", "hours is given twice"),
        (f"{GPU_HOURS},pool=", "invalid part 'pool='"),
        (f"{GPU_HOURS},pool=A100", "'A100'"),
        (f"{GPU_HOURS},month=11", "'month=11'"),
        ("resource=nvidia.com/gpu,hours=many", "hours 'many' is not a number"),
        ("resource=nvidia.com/gpu,hours=-1", "hours -1 is not"),
        ("resource=nvidia.com/gpu,hours=nan", "hours nan is not"),
        ("resource=nvidia.com/gpu,hours=inf", "hours inf is not"),
    ],
)
def test_invalid_budgets_are_refused(text: str, complaint: str) -> None:
    with pytest.raises(InputError, match=r"--budget") as caught:
        tenant_spec.parse_budget(text)
    assert complaint in str(caught.value)


def test_budgets_replace_those_of_the_manifest() -> None:
    before = (TenantBudget(resource="x.io/nic", hours=1),)
    given = Tenant(metadata=Meta(name="a"), spec=TenantSpec(budget=before))
    assert tenant_spec.apply_options(given).spec.budget == before
    wanted = tenant_spec.apply_options(given, budgets=[GPU_HOURS, f"{GPU_HOURS},pool=p"])
    assert wanted.spec.budget == (
        TenantBudget(resource="nvidia.com/gpu", hours=1000),
        TenantBudget(resource="nvidia.com/gpu", hours=1000, pool="p"),
    )


def test_options_override_manifest() -> None:
    given = Tenant(metadata=Meta(name="a"), spec=TenantSpec(template="big", pools=(TenantPool(name="p"),)))

    wanted = tenant_spec.apply_options(given, kubernetes_version="v1.35.4", pod_security="restricted")

    assert wanted.spec.template == "big"
    assert wanted.spec.pools == (TenantPool(name="p"),)
    assert wanted.spec.kubernetes_version == "1.35.4"
    assert wanted.spec.policy.pod_security == "restricted"


def test_exactly_one_name_is_required() -> None:
    given = Tenant(metadata=Meta(name="alpha"))

    assert tenant_spec.with_name(None, "alpha").metadata.name == "alpha"
    assert tenant_spec.with_name(given, None).metadata.name == "alpha"
    assert tenant_spec.with_name(given, "alpha").metadata.name == "alpha"
    with pytest.raises(InputError, match="'beta' on the command line, but 'alpha' in the manifest"):
        tenant_spec.with_name(given, "beta")
    with pytest.raises(InputError, match="no tenant name given"):
        tenant_spec.with_name(None, None)


@pytest.mark.parametrize("name", ["Alpha", "a--b", "1a", "a" * 33, "-a", ""])
def test_invalid_names_are_refused(name: str) -> None:
    with pytest.raises(InputError, match="tenant"):
        tenant_spec.with_name(None, name)
