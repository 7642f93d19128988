"""Tests of manifests for `tenant create -f`."""

from pathlib import Path

import pytest

from vkgateway.api.errors import InputError
from vkgateway.api.types import TenantPool
from vkgateway.cli import tenant_spec
from vkgateway.cli.tenant_create import read_manifest


def test_manifest_is_read_like_kubectl(tmp_path: Path) -> None:
    file = tmp_path / "tenant.yaml"
    file.write_text(
        "apiVersion: vkgateway.io/v1alpha1\nkind: Tenant\nmetadata: {name: alpha}\n"
        "spec: {pools: [{name: a100, limit: {nvidia.com/gpu: 8}}]}\n"
    )

    found = read_manifest(file)

    assert found.metadata.name == "alpha"
    assert found.spec.pools == (TenantPool(name="a100", limit={"nvidia.com/gpu": 8}),)
    assert tenant_spec.to_manifest(found) == {
        "apiVersion": "vkgateway.io/v1alpha1",
        "kind": "Tenant",
        "metadata": {"name": "alpha"},
        "spec": {"pools": [{"name": "a100", "limit": {"nvidia.com/gpu": 8}}]},
    }


@pytest.mark.parametrize(
    ("text", "complaint"),
    [
        ("[", "not a YAML file"),
        ("a: 1\n---\nb: 2\n", "not a YAML file with one object: expected a single document"),
        ("", "contains nothing, not a vkgateway.io/v1alpha1 Tenant"),
        ("- a\n", "contains no Kubernetes object, not a"),
        ("kind: Pod\napiVersion: v1\n", "contains v1 Pod, not a"),
        ("kind: Tenant\n", "contains \\(no apiVersion\\) Tenant, not a"),
        (
            "apiVersion: vkgateway.io/v1alpha1\nkind: Tenant\nmetadata: {name: a}\nspec: {pools: 3}\n",
            "spec.pools",
        ),
    ],
)
def test_invalid_manifests_are_refused(tmp_path: Path, text: str, complaint: str) -> None:
    file = tmp_path / "tenant.yaml"
    file.write_text(text)
    with pytest.raises(InputError, match=complaint):
        read_manifest(file)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("spce: {}", "spce"),
        ("spec: {pool: [{name: a100}]}", "spec.pool"),
        ("spec: {pools: [{name: a100}, {name: v100, guarentee: {cpu: 1}}]}", "spec.pools[1].guarentee"),
        ("spec: {policy: {podSecurty: restricted}}", "spec.policy.podSecurty"),
        ("spec: {apiServer: {ports: 1}}", "spec.apiServer.ports"),
    ],
)
def test_unknown_fields_are_refused(tmp_path: Path, text: str, field: str) -> None:
    file = tmp_path / "tenant.yaml"
    file.write_text(f"apiVersion: vkgateway.io/v1alpha1\nkind: Tenant\nmetadata: {{name: alpha, uid: x}}\n{text}\n")
    with pytest.raises(InputError) as caught:
        read_manifest(file)
    assert str(caught.value) == f"{file}: a Tenant has no field {field}"


def test_output_of_kubectl_get_can_be_created(tmp_path: Path) -> None:
    """The output has server-side fields and custom keys."""
    file = tmp_path / "tenant.yaml"
    file.write_text(
        "apiVersion: vkgateway.io/v1alpha1\nkind: Tenant\n"
        "metadata: {name: alpha, uid: x, generation: 3, managedFields: [{manager: kubectl}]}\n"
        "spec: {pools: [{name: a100, guarantee: {cpu: 1}}], policy: {storageClassNames: {standard: ceph}}}\n"
        "status: {phase: Ready, more: {}}\n"
    )
    assert read_manifest(file).spec.policy.storage_class_names == {"standard": "ceph"}


def test_directory_is_no_manifest(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=f"cannot read manifest {tmp_path}: Is a directory"):
        read_manifest(tmp_path)


def test_missing_manifest_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"nowhere\.yaml does not exist"):
        read_manifest(tmp_path / "nowhere.yaml")
