"""The manifest of a tenant, as `kubectl apply` takes it: read from a file into a Tenant object."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import yaml
from msgspec import inspect

from vkgateway.kube import yamltext
from vkgateway.model.api import Tenant, TenantSpec
from vkgateway.model.errors import InputError
from vkgateway.model.names import API_VERSION

_TOP_LEVEL_FIELDS = frozenset({"apiVersion", "kind", "metadata", "spec", "status"})


def read_manifest(file: Path) -> Tenant:
    """Read a Tenant object from a YAML or JSON file.

    A field that there is not is refused, as `kubectl apply` refuses it: a guarantee that is misspelt is none.
    Raises InputError with the path of the field that is wrong.
    """
    data = _read_document(file)
    found = _describe_kind(data)
    if found != f"{API_VERSION} Tenant":
        raise InputError(f"manifest {file} holds no Tenant of {API_VERSION}, but {found}")
    tenant = _to_tenant(data, source=str(file))
    unknown = sorted(data.keys() - _TOP_LEVEL_FIELDS) or list(
        _unknown_fields(data.get("spec"), _SPEC_TYPE, path="spec")
    )
    if unknown:
        raise InputError(
            f"{file}: a Tenant has no field {unknown[0]}", hint="`kubectl explain tenant.spec --recursive` lists them."
        )
    return tenant


def _read_document(file: Path) -> Any:
    try:
        return yamltext.load(file.read_text())
    except FileNotFoundError as error:
        raise InputError(f"manifest {file} does not exist") from error
    except OSError as error:
        raise InputError(f"manifest {file} cannot be read: {error.strerror}") from error
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise InputError(f"manifest {file} is not YAML of one object: {' '.join(str(error).split())}") from error


def _describe_kind(data: Any) -> str:
    """What a document is an object of, in words."""
    if not isinstance(data, dict):
        return "nothing" if data is None else "no object at all"
    return " ".join(str(data.get(key) or f"something without {key}") for key in ("apiVersion", "kind"))


def _to_tenant(data: dict[str, Any], *, source: str) -> Tenant:
    try:
        return msgspec.convert(data, Tenant)
    except msgspec.ValidationError as error:
        what, _, where = str(error).partition(" - at ")
        path = where.strip("`").removeprefix("$.")
        raise InputError(f"{source}: {path}: {what}" if path else f"{source}: {what}") from error


_SPEC_TYPE = inspect.type_info(TenantSpec)


def _unknown_fields(value: Any, kind: inspect.Type, *, path: str) -> Iterator[str]:
    """Fields in what was converted to `kind` that it does not have; maps with keys of people's own have all."""
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
