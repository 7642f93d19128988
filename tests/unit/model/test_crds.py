"""CRDs and API types have the same fields and defaults."""

import re
from importlib import resources
from typing import Any

import msgspec
import pytest
import yaml

from vkgateway.api import types as api
from vkgateway.api.reserve import pool_problems

TYPES: dict[str, type[msgspec.Struct]] = {"tenants": api.Tenant, "computeclusters": api.ComputeCluster}


def schema(plural: str) -> dict[str, Any]:
    text = (resources.files("vkgateway.api") / "crds" / f"{plural}.yaml").read_text()
    crd = yaml.safe_load(text)
    assert crd["metadata"]["name"] == f"{plural}.vkgateway.io"
    found: dict[str, Any] = crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"]
    return found


def fields_of(kind: Any) -> dict[str, msgspec.inspect.Field]:
    info = msgspec.inspect.type_info(kind)
    assert isinstance(info, msgspec.inspect.StructType)
    return {field.encode_name: field for field in info.fields}


def struct_in(info: msgspec.inspect.Type) -> type | None:
    if isinstance(info, msgspec.inspect.StructType):
        return info.cls
    if isinstance(info, msgspec.inspect.UnionType):
        return next((found for part in info.types if (found := struct_in(part))), None)
    if isinstance(info, msgspec.inspect.VarTupleType):
        return struct_in(info.item_type)
    return None


def compare(properties: dict[str, Any], kind: Any, path: str) -> None:
    fields = fields_of(kind)
    if kind.__name__ == "Condition":
        fields.pop("lastHeartbeatTime")
    assert properties.keys() == fields.keys(), path
    for name, field in fields.items():
        inner = struct_in(field.type)
        part = properties[name].get("items", properties[name])
        if inner is not None and name != "metadata":
            compare(part["properties"], inner, f"{path}.{name}")


@pytest.mark.parametrize("plural", TYPES)
def test_crd_and_type_have_same_fields(plural: str) -> None:
    compare(schema(plural)["properties"], TYPES[plural], plural)


def test_crd_and_type_have_same_defaults() -> None:
    spec = schema("tenants")["properties"]["spec"]["properties"]
    default = api.TenantSpec()
    assert spec["template"]["default"] == default.template
    assert spec["kubernetesVersion"]["default"] == default.kubernetes_version
    policy = spec["policy"]["properties"]
    assert policy["podSecurity"]["default"] == default.policy.pod_security
    assert policy["imagePullSecrets"]["default"] == list(default.policy.image_pull_secrets)
    assert spec["pools"]["items"]["properties"]["computeCluster"]["default"] == api.DEFAULT_COMPUTE_CLUSTER
    assert spec["apiServer"]["properties"]["port"]["default"] == default.api_server.port
    pool = spec["pools"]["items"]["properties"]
    assert pool["weight"]["default"] == api.TenantPool(name="a100").weight
    assert pool["cells"]["default"] == list(api.TenantPool(name="a100").cells)
    compute = schema("computeclusters")["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    assert compute["levels"]["default"] == list(api.Pool(name="a100").levels)
    assert compute["cellResource"]["default"] == api.Pool(name="a100").cell_resource
    assert "default" not in compute["noticeSeconds"]
    assert "default" not in compute["graceSeconds"]
    assert compute["reserve"]["default"] == api.Pool(name="a100").reserve


@pytest.mark.parametrize(
    ("text", "refused"),
    [
        ("5%", None),
        ("0%", None),
        ("100%", None),
        ("007%", None),
        ("101%", "100% of the pool at most"),
        ("1000%", "100% of the pool at most"),
        ("5", "a number of units"),
        ("-5%", "a number of units"),
        ("2.5%", "a number of units"),
        ("some", "a number of units"),
        ("", "a number of units"),
    ],
)
def test_api_server_and_gateway_accept_same_reserves(text: str, refused: str | None) -> None:
    """The CEL rules for text combine patterns on one variable with `!` and `||`."""
    pool = schema("computeclusters")["properties"]["spec"]["properties"]["pools"]["items"]["properties"]
    refusals = []
    for rule in pool["reserve"]["x-kubernetes-validations"]:
        kind, *parts = rule["rule"].split(" || ")
        if kind == "type(self) == int":
            met = [bool(re.search(part.partition("'")[2][:-2], text)) is not part.startswith("!") for part in parts]
            refusals += [] if any(met) else [rule["message"]]
    assert len(refusals) == (refused is not None)
    assert refused is None or refused in refusals[0]

    known = list(pool_problems(api.Pool(name="a100", reserve=text)))
    assert bool(known) is (refused is not None)


@pytest.mark.parametrize("plural", TYPES)
def test_every_field_has_description(plural: str) -> None:
    """`kubectl explain` shows only these descriptions. API servers accept no description of metadata."""

    def walk(node: dict[str, Any], path: str) -> None:
        for name, part in node.get("properties", {}).items():
            assert part.get("description", "").endswith("."), f"{path}.{name}"
            walk(part.get("items", part), f"{path}.{name}")

    found = schema(plural)
    assert found["properties"].pop("metadata") == {"type": "object"}
    walk(found, plural)
