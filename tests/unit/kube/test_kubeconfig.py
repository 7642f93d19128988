"""Kubeconfig files: reading like kubectl, and writing without loss of other entries."""

from __future__ import annotations

import base64
import os
import ssl
import stat
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import yaml
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from tests.fakes.apiserver import FakeApiServer
from vkgateway.api.errors import ConflictError, InputError
from vkgateway.kube import bearer, kubeconfig, tls
from vkgateway.kube.client import Client


def _identity(name: str) -> tuple[bytes, bytes]:
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    cert = (
        x509.CertificateBuilder(subject, subject, key.public_key(), 1, now, now + timedelta(days=1))
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .sign(key, hashes.SHA256())
    )
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption())
    return cert.public_bytes(serialization.Encoding.PEM), pem


CERT, KEY = _identity("one")
OTHER_CERT, OTHER_KEY = _identity("two")
PROXIED = {"server": "https://x", "proxy-url": "http://p"}


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "config"


def _built(name: str = "alpha", **options: Any) -> dict[str, Any]:
    return kubeconfig.build_document(name, server="https://10.0.0.1:6443/", ca=CERT, cert=CERT, key=KEY, **options)


def test_built_document_is_read_back(path: Path) -> None:
    kubeconfig.write_file(path, _built(user="admin", namespace="team"))
    connection = kubeconfig.load(path).client_config()
    assert connection.server == "https://10.0.0.1:6443"
    assert (connection.context, connection.namespace) == ("alpha", "team")
    assert (connection.ca, connection.cert, connection.key) == (CERT, CERT, KEY)
    assert connection.token_source() is None
    context = connection.ssl_context()
    assert context is not None
    assert context.verify_mode is ssl.CERT_REQUIRED
    assert context.check_hostname


def test_file_is_readable_by_owner_only(path: Path) -> None:
    path.write_text("{}")
    path.chmod(0o644)
    kubeconfig.write_file(path, _built())
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert os.listdir(path.parent) == ["config"]


def test_symbolic_link_is_preserved(path: Path, tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    path.symlink_to(tmp_path / "real" / "config")
    kubeconfig.write_file(path, _built())
    assert path.is_symlink()
    assert (tmp_path / "real" / "config").exists()


def test_merge_keeps_other_entries(path: Path) -> None:
    theirs = _built("mine") | {"preferences": {"colors": True}}
    kubeconfig.write_file(path, theirs)
    kubeconfig.merge_into_file(path, _built("alpha"))
    kubeconfig.merge_into_file(path, _built("alpha", namespace="n"), switch=False)
    merged = yaml.safe_load(path.read_text())
    assert [entry["name"] for entry in merged["contexts"]] == ["mine", "alpha"]
    assert merged["contexts"][1]["context"]["namespace"] == "n"
    assert merged["preferences"] == {"colors": True}
    assert merged["current-context"] == "alpha"


def test_merge_creates_file_and_folder(tmp_path: Path) -> None:
    kubeconfig.merge_into_file(tmp_path / "new" / "config", _built())
    assert kubeconfig.load(tmp_path / "new" / "config").current_context == "alpha"


def test_merge_leaves_invalid_file_unchanged(path: Path) -> None:
    path.write_text("- a list")
    with pytest.raises(InputError, match="not a kubeconfig"):
        kubeconfig.merge_into_file(path, _built())
    assert path.read_text() == "- a list"


def test_empty_file_is_an_empty_kubeconfig(path: Path) -> None:
    path.touch()
    kubeconfig.merge_into_file(path, _built())
    assert kubeconfig.load(path).current_context == "alpha"


@pytest.mark.parametrize(
    "text", ["clusters: [a]", "users: [{user: {}}]", "contexts: [{name: alpha, context: [x]}]", "clusters: [{name: 5}]"]
)
def test_malformed_entries_are_refused(path: Path, text: str) -> None:
    path.write_text(text)
    with pytest.raises(InputError, match="not a kubeconfig"):
        kubeconfig.merge_into_file(path, _built())
    assert path.read_text() == text


def test_binary_file_is_refused(path: Path) -> None:
    document = _built()
    document["clusters"][0]["cluster"]["certificate-authority-data"] = 5
    kubeconfig.write_file(path, document)
    with pytest.raises(InputError, match="certificate-authority-data is not base64"):
        kubeconfig.load(path).client_config()


def _kubeadm_like(*, cluster: str, user: str, context: str) -> dict[str, Any]:
    document = _built(cluster, user=user)
    document["contexts"][0]["name"] = document["current-context"] = context
    return document


@pytest.mark.parametrize(
    ("theirs", "complaint"),
    [
        (_kubeadm_like(cluster="gke", user="me", context="alpha"), "another context 'alpha'"),
        (_kubeadm_like(cluster="alpha", user="me", context="me@alpha"), "another cluster 'alpha'"),
        (_kubeadm_like(cluster="gke", user="alpha-admin", context="gke"), "another user 'alpha-admin'"),
    ],
)
def test_merge_refuses_entries_of_another_cluster(path: Path, theirs: dict[str, Any], complaint: str) -> None:
    kubeconfig.write_file(path, theirs)
    before = path.read_text()
    with pytest.raises(ConflictError, match=complaint) as caught:
        kubeconfig.merge_into_file(path, _built(user="alpha-admin"))
    assert "-f FILE" in caught.value.hint
    assert path.read_text() == before


def test_file_with_other_clusters_is_not_replaced(path: Path) -> None:
    kubeconfig.write_file(path, kubeconfig.merge_documents(_built("mine"), _built()))
    before = path.read_text()
    with pytest.raises(ConflictError, match="other clusters, which would be lost: mine") as caught:
        kubeconfig.replace_file(path, _built())
    assert "--merge" in caught.value.hint
    assert path.read_text() == before


def test_older_kubeconfig_of_same_cluster_is_replaced(path: Path) -> None:
    kubeconfig.replace_file(path, _built())
    kubeconfig.replace_file(path, _built(namespace="n"))
    assert kubeconfig.load(path).client_config().namespace == "n"


def test_special_file_is_not_replaced(path: Path) -> None:
    os.mkfifo(path)
    with pytest.raises(InputError, match="not a regular file"):
        kubeconfig.replace_file(path, _built())
    assert path.is_fifo()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root may write for others")
def test_file_keeps_its_owner(path: Path) -> None:
    path.touch()
    os.chown(path, 12345, 54321)
    kubeconfig.merge_into_file(path, _built())
    assert (path.stat().st_uid, path.stat().st_gid) == (12345, 54321)


def test_relative_paths_start_from_kubeconfig(path: Path) -> None:
    document = _built()
    document["clusters"][0]["cluster"] = {"server": "https://x", "certificate-authority": "ca.crt"}
    document["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig.write_file(path, document)
    with pytest.raises(InputError, match=r"certificate-authority .*ca\.crt cannot be read"):
        kubeconfig.load(path).client_config()
    (path.parent / "ca.crt").write_bytes(CERT)
    assert kubeconfig.load(path).client_config().ca == CERT


async def test_token_file_is_read_again(path: Path) -> None:
    document = _built()
    document["users"][0]["user"] = {"tokenFile": "token"}
    kubeconfig.write_file(path, document)
    source = kubeconfig.load(path).client_config().token_source()
    assert isinstance(source, bearer.CachingTokenSource)
    with pytest.raises(InputError, match="token file"):
        await source()
    (path.parent / "token").write_text("one\n")
    assert await source() == "one"
    (path.parent / "token").write_text("two")
    assert await source() == "one"
    source._expires_at = 0
    assert await source() == "two"


async def test_exec_plugin_returns_token(path: Path) -> None:
    answer = '{"apiVersion": "client.authentication.k8s.io/v1", "kind": "ExecCredential", "status": {"token": "t"}}'
    document = _built()
    document["users"][0]["user"] = {
        "exec": {
            "apiVersion": "client.authentication.k8s.io/v1",
            "command": sys.executable,
            "args": ["-c", f"print('{answer}')"],
        }
    }
    kubeconfig.write_file(path, document)
    source = kubeconfig.load(path).client_config().token_source()
    assert source is not None
    assert await source() == "t"
    document["users"][0]["user"]["exec"]["args"] = ["-c", "raise SystemExit(3)"]
    kubeconfig.write_file(path, document)
    source = kubeconfig.load(path).client_config().token_source()
    assert source is not None
    with pytest.raises(InputError, match="exec plugin of context 'alpha' failed"):
        await source()


async def test_client_from_kubeconfig(path: Path, server: FakeApiServer) -> None:
    server.token = "secret"
    document = kubeconfig.build_document("alpha", server=server.url, ca="", token="secret")
    kubeconfig.write_file(path, document)
    async with Client.from_kubeconfig(path) as client:
        assert client.name == "alpha"
        await client.request("GET", "/version")
    assert "secret" not in repr(kubeconfig.load(path).client_config())


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current-context": ""}, "has no current-context"),
        ({"current-context": "x"}, "has no context 'x'; it has: alpha"),
        ({"clusters": []}, "has no cluster 'alpha'; it has: none"),
        ({"clusters": [{"name": "alpha", "cluster": {}}]}, "has no server"),
        ({"users": [{"name": "alpha", "user": {"client-key-data": "!"}}]}, "client-key-data is not base64"),
        ({"users": [{"name": "alpha", "user": {"auth-provider": {}}}]}, "auth-provider"),
        (
            {"users": [{"name": "alpha", "user": {"as": "bob"}}]},
            "has as, but vkgateway does not support imperson",
        ),
        ({"users": [{"name": "alpha", "user": {"username": "bob"}}]}, "has username, which Kubernetes has removed"),
        (
            {"users": [{"name": "alpha", "user": {"client-certificate-data": "QQ=="}}]},
            "client-certificate and no client-key",
        ),
        ({"users": [{"name": "alpha", "user": {"client-key-data": "QQ=="}}]}, "client-key and no client-certificate"),
        (
            {"clusters": [{"name": "alpha", "cluster": PROXIED}]},
            "has proxy-url, but vkgateway does not support prox",
        ),
        ({"users": "x"}, "not a kubeconfig"),
    ],
)
def test_invalid_entry_is_named(path: Path, change: dict[str, Any], message: str) -> None:
    path.write_text(yaml.safe_dump(_built() | change))
    with pytest.raises(InputError, match=message) as caught:
        kubeconfig.load(path).client_config()
    assert str(path) in str(caught.value)


def test_unreadable_file_is_named(path: Path) -> None:
    with pytest.raises(InputError, match=f"{path} cannot be read: No such file"):
        kubeconfig.load(path)
    path.write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="not a text file"):
        kubeconfig.load(path)
    path.write_text("a: [")
    with pytest.raises(InputError, match="is not YAML"):
        kubeconfig.load(path)


def test_default_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", ":/a/b:/c")
    assert kubeconfig.default_path() == Path("/a/b")
    monkeypatch.delenv("KUBECONFIG")
    assert kubeconfig.default_path() == Path.home() / ".kube/config"


def test_in_cluster_config(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("KUBERNETES_SERVICE_HOST", raising=False)
    with pytest.raises(InputError, match="does not run in a Kubernetes pod"):
        kubeconfig.in_cluster_config(tmp_path)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    (tmp_path / "token").write_text("t")
    (tmp_path / "ca.crt").write_bytes(CERT)
    assert kubeconfig.in_cluster_config(tmp_path).server == "https://[fd00::1]:443"


def test_certificate_and_key_must_match(monkeypatch: pytest.MonkeyPatch) -> None:
    assert tls.client_context(ca=CERT.decode(), cert=CERT.decode(), key=KEY.decode()).check_hostname
    with pytest.raises(InputError, match="not a matching PEM pair"):
        tls.client_context(ca=CERT, cert=CERT, key=OTHER_KEY)
    with pytest.raises(InputError, match="not a PEM certificate"):
        tls.client_context(ca="nonsense")
    assert tls.client_context(insecure=True).verify_mode is ssl.CERT_NONE
    monkeypatch.delattr(os, "memfd_create")
    tls.client_context(ca=CERT, cert=OTHER_CERT, key=OTHER_KEY)


def test_built_document_contains_pem_as_base64() -> None:
    user = _built()["users"][0]["user"]
    assert base64.b64decode(user["client-key-data"]) == KEY
