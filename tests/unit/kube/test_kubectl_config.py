"""Tests of kubeconfig files as kubectl reads them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from vkgateway.api.errors import InputError
from vkgateway.kube.kubectl_config import ConfigChoice, load_client_config


def write(folder: Path, name: str, **sections: Any) -> Path:
    """Write a kubeconfig: clusters by server, users by token, contexts as (cluster, user, namespace)."""
    document = {
        "clusters": [{"name": n, "cluster": {"server": server}} for n, server in sections.get("clusters", {}).items()],
        "users": [{"name": n, "user": {"token": token}} for n, token in sections.get("users", {}).items()],
        "contexts": [
            {"name": n, "context": {"cluster": cluster, "user": user, "namespace": namespace}}
            for n, (cluster, user, namespace) in sections.get("contexts", {}).items()
        ],
        "current-context": sections.get("current", ""),
    }
    file = folder / name
    file.parent.mkdir(exist_ok=True)
    file.write_text(yaml.safe_dump(document))
    return file


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> tuple[Path, Path]:
    """Set KUBECONFIG to two files: contexts of the first use a cluster of the second."""
    first = write(
        tmp_path, "first", users={"u": "first"}, contexts={"a": ("far", "u", "research"), "b": ("near", "u", "")}
    )
    second = write(
        tmp_path,
        "second",
        clusters={"far": "https://far:6443", "near": "https://near:6443"},
        users={"u": "second", "v": "other"},
        contexts={"a": ("near", "v", "other")},
        current="a",
    )
    monkeypatch.setenv("KUBECONFIG", f"{first}:{tmp_path / 'missing'}:{second}:")
    return first, second


def chosen(**options: Any) -> tuple[str, str, str]:
    config = load_client_config(ConfigChoice(**options))
    return config.server, config.token, config.namespace


def test_first_file_wins_and_missing_files_are_skipped(files: tuple[Path, Path]) -> None:
    assert chosen() == ("https://far:6443", "first", "research")


@pytest.mark.parametrize(
    ("options", "result"),
    [
        ({"context": "b"}, ("https://near:6443", "first", "default")),
        ({"cluster": "near"}, ("https://near:6443", "first", "research")),
        ({"user": "v"}, ("https://far:6443", "other", "research")),
        ({"context": "b", "cluster": "far", "user": "v"}, ("https://far:6443", "other", "default")),
    ],
)
def test_options_replace_parts_of_the_context(
    files: tuple[Path, Path], options: dict[str, str], result: tuple[str, str, str]
) -> None:
    assert chosen(**options) == result


def test_only_the_given_file_is_read(files: tuple[Path, Path]) -> None:
    assert chosen(kubeconfig=files[1]) == ("https://near:6443", "other", "other")


def test_cluster_and_user_need_no_context(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(write(tmp_path, "k", clusters={"c": "https://c:1"}, users={"u": "t"})))
    assert chosen(cluster="c", user="u") == ("https://c:1", "t", "default")


def test_relative_paths_start_from_their_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "ca.pem").write_bytes(b"authority")
    document = {
        "clusters": [{"name": "c", "cluster": {"server": "https://c:1", "certificate-authority": "ca.pem"}}],
        "users": [{"name": "u", "user": {"exec": {"command": "./sign-in"}}}],
    }
    (tmp_path / "keys" / "config").write_text(yaml.safe_dump(document))
    other = write(tmp_path, "other", contexts={"x": ("c", "u", "")}, current="x")
    monkeypatch.setenv("KUBECONFIG", f"{other}:{tmp_path / 'keys' / 'config'}")
    config = load_client_config(ConfigChoice())
    assert config.ca == b"authority"
    assert config.exec_plugin is not None
    assert config.exec_plugin["command"] == str(tmp_path / "keys" / "sign-in")


def test_home_is_read_without_variable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    write(tmp_path, ".kube/config", clusters={"c": "https://c:1"}, contexts={"x": ("c", "", "n")}, current="x")
    assert chosen() == ("https://c:1", "", "n")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"context": "z"}, "has no context 'z'; it has: a, b"),
        ({"context": "z", "user": "v"}, "context 'z' does not exist"),
        ({"cluster": "z"}, "has no cluster 'z'"),
        ({"kubeconfig": Path("/nonexistent/file")}, "kubeconfig /nonexistent/file does not exist"),
    ],
)
def test_missing_entries_are_named(files: tuple[Path, Path], options: dict[str, Any], problem: str) -> None:
    with pytest.raises(InputError, match=problem):
        chosen(**options)


def test_no_configuration_names_the_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(tmp_path / "none"))
    with pytest.raises(InputError, match=f"no cluster is configured in {tmp_path}/none") as error:
        chosen()
    assert "--kubeconfig" in error.value.hint
