"""Manifest of a Tenant, as for `kubectl apply`."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from vkgateway.api.errors import InputError
from vkgateway.api.names import API_VERSION
from vkgateway.api.types import Tenant, TenantSpec
from vkgateway.kube import yamltext

_TOP_LEVEL_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def read_manifest(file: Path) -> Tenant:
    """Return a Tenant object from a YAML or JSON file.

    Unknown fields are refused, as `kubectl apply` does: a misspelled guarantee would have no effect. Raises InputError
    with the path of the invalid field.
    """
    data = _read_document(file)
    found = _describe_kind(data)
    if found != f"{API_VERSION} Tenant":
        raise InputError(f"manifest {file} contains {found}, not a {API_VERSION} Tenant")
    tenant = _to_tenant(data, source=str(file))
    unknown = sorted(data.keys() - _TOP_LEVEL_FIELDS) or list(
        _unknown_fields(data.get("spec"), _SPEC_TYPE, path="spec")
    )
    if unknown:
        raise InputError(
            f"{file}: a Tenant has no field {unknown[0]}",
            hint="`kubectl explain tenant.spec --recursive` lists all fields.",
        )
    return tenant


def _read_document(file: Path) -> Any:
    try:
        return yamltext.load(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"manifest {file} does not exist") from error
    except OSError as error:
        raise InputError(f"cannot read manifest {file}: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(
            f"manifest {file} is not a YAML file with one object: {' '.join(str(error).split())}"
        ) from error


def _describe_kind(data: Any) -> str:
    """Return the API version and kind of a document, or a description of other content."""
    if not isinstance(data, dict):
        return "nothing" if data is None else "no Kubernetes object"
    return " ".join(str(data.get(key) or f"(no {key})") for key in ("apiVersion", "kind"))


def _to_tenant(data: dict[str, Any], *, source: str) -> Tenant:
    try:
        return msgspec.convert(data, Tenant)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$.")
        raise InputError(f"{source}: {path}: {what}" if path else f"{source}: {what}") from error


_SPEC_TYPE = inspect.type_info(TenantSpec)


def _unknown_fields(value: Any, kind: inspect.Type, *, path: str) -> Iterator[str]:
    """Yield the paths of fields that `kind` does not have; maps accept all keys."""
    if isinstance(kind, inspect.VarTupleType):
        for number, item in enumerate(value or ()):
            yield from _unknown_fields(item, kind.item_type, path=f"{path}[{number}]")
    elif isinstance(kind, inspect.StructType):
        fields = {field.encode_name: field.type for field in kind.fields}
        for key, inner in (value or {}).items():
            if key in fields:
                yield from _unknown_fields(inner, fields[key], path=f"{path}.{key}")
            else:
                yield f"{path}.{key}"
