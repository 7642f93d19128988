"""Certificates, keys, kubeconfigs and admission settings of a control plane."""

from __future__ import annotations

import datetime
import ssl
from pathlib import Path

import pytest
import yaml

from tests.unit.controlplane.planes import ALPHA, AUTHORITIES, NOW, contents, tenant_plane, versioned_plane, write
from vkgateway.nodes import identity
from vkgateway.planes.drivers.process.plane_directory import read_plane_files
from vkgateway.planes.pki import Authority, alternative_names, common_name


def test_certificate_is_signed_by_the_authority_that_its_peer_trusts(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane(names=("api.example.org", "192.0.2.7")))
    signers = {
        "apiserver": (ALPHA.ca, "kube-apiserver"),
        "controller-manager": (ALPHA.ca, "system:kube-controller-manager"),
        "scheduler": (ALPHA.ca, "system:kube-scheduler"),
        "front-proxy": (ALPHA.front_proxy_ca, "front-proxy-client"),
        "etcd": (AUTHORITIES.etcd, "tenant-alpha"),
        "kubelet-client": (AUTHORITIES.kubelet, "vkgateway:tenant:alpha"),
    }
    for name, (authority, user) in signers.items():
        certificate = files.cert_path(name).read_bytes()
        assert authority.has_signed(certificate), name
        assert common_name(certificate) == user
    names = alternative_names(files.cert_path("apiserver").read_bytes())
    assert {"10.0.0.1", "10.96.0.1", "kubernetes.default.svc", "api.example.org", "192.0.2.7"} <= names


def test_keys_of_platform_authorities_are_not_among_the_files(tmp_path: Path) -> None:
    write(tmp_path, tenant_plane())
    written = b"".join(contents(tmp_path).values())
    for authority in (AUTHORITIES.etcd, AUTHORITIES.kubelet):
        assert authority.key_pem not in written


def test_only_the_owner_can_read_keys_and_kubeconfigs(tmp_path: Path) -> None:
    write(tmp_path, tenant_plane())
    for file in tmp_path.iterdir():
        if file.suffix in (".key", ".kubeconfig"):
            assert file.stat().st_mode & 0o077 == 0, file.name


def test_second_write_changes_no_file(tmp_path: Path) -> None:
    write(tmp_path, tenant_plane())
    before = contents(tmp_path)
    write(tmp_path, tenant_plane())
    assert contents(tmp_path) == before


@pytest.mark.parametrize("broken", ["apiserver.crt", "apiserver.key", "etcd.key", "scheduler.kubeconfig", "sa.pub"])
@pytest.mark.parametrize("how", ["gone", "empty", "anothers"])
def test_missing_or_broken_file_is_written_again(tmp_path: Path, broken: str, how: str) -> None:
    write(tmp_path / "ours", tenant_plane())
    file = tmp_path / "ours" / broken
    if how == "gone":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    else:
        other = Authority.create("other").issue("kube-apiserver", server=True)
        file.write_bytes(other.cert_pem if broken.endswith(".crt") else other.key_pem)
    files = write(tmp_path / "ours", tenant_plane())
    assert ALPHA.ca.has_signed(files.cert_path("apiserver").read_bytes())
    before = contents(tmp_path / "ours")
    write(tmp_path / "ours", tenant_plane())
    assert contents(tmp_path / "ours") == before


def test_expiring_certificate_is_renewed_but_no_authority(tmp_path: Path) -> None:
    write(tmp_path, tenant_plane())
    before = contents(tmp_path)
    write(tmp_path, tenant_plane(), now=NOW + datetime.timedelta(days=300))
    after = contents(tmp_path)
    assert after["apiserver.crt"] != before["apiserver.crt"]
    assert after["etcd.crt"] != before["etcd.crt"]
    assert {name: after[name] for name in ("ca.crt", "sa.key", "etcd-ca.crt")} == {
        name: before[name] for name in ("ca.crt", "sa.key", "etcd-ca.crt")
    }


def test_renewal_keeps_the_previous_kubelet_client_certificate(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane())
    old = files.cert_path("kubelet-client").read_text()
    assert read_plane_files(tmp_path).kubelet_clients() == {
        identity.certificate_fingerprint(ssl.PEM_cert_to_DER_cert(old))
    }
    write(tmp_path, tenant_plane(), now=NOW + datetime.timedelta(days=300))
    new = files.cert_path("kubelet-client").read_text()
    assert new != old
    assert read_plane_files(tmp_path).kubelet_clients() == {
        identity.certificate_fingerprint(ssl.PEM_cert_to_DER_cert(pem)) for pem in (old, new)
    }
    assert not (tmp_path / "kubelet-client-before.key").exists()


@pytest.mark.parametrize("broken", ["kubelet-client.crt", "kubelet-client-before.crt"])
def test_broken_kubelet_client_certificate_is_ignored(tmp_path: Path, broken: str) -> None:
    write(tmp_path, tenant_plane())
    write(tmp_path, tenant_plane(), now=NOW + datetime.timedelta(days=300))
    both = read_plane_files(tmp_path).kubelet_clients()
    (tmp_path / broken).write_bytes(b"")
    assert len(both) == 2
    assert len(read_plane_files(tmp_path).kubelet_clients()) == 1
    assert read_plane_files(tmp_path).kubelet_clients() < both


def test_kubelet_client_certificate_of_another_authority_is_not_kept(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane())
    files.cert_path("kubelet-client").write_bytes(ALPHA.ca.issue("vkgateway:tenant:alpha", client=True).cert_pem)
    write(tmp_path, tenant_plane())
    assert len(read_plane_files(tmp_path).kubelet_clients()) == 1


def test_kubeconfig_refers_to_existing_files(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane())
    document = yaml.safe_load(files.kubeconfig_path("scheduler").read_text())
    user, cluster = document["users"][0]["user"], document["clusters"][0]["cluster"]
    for path in (user["client-certificate"], user["client-key"], cluster["certificate-authority"]):
        assert Path(path).exists()
    assert cluster["server"] == "https://10.0.0.1:20001"


def test_api_server_presents_its_kubelet_client_certificate_to_the_webhook(tmp_path: Path) -> None:
    files = write(tmp_path, versioned_plane("1.33.13"))
    (plugin,) = yaml.safe_load(files.admission_path.read_text())["plugins"]
    (user,) = yaml.safe_load(Path(plugin["configuration"]["kubeConfigFile"]).read_text())["users"]
    certificate = Path(user["user"]["client-certificate"])
    assert plugin["name"] == "MutatingAdmissionWebhook"
    assert user["name"] == "10.0.0.1:10352"
    assert common_name(certificate.read_bytes()) == "vkgateway:tenant:alpha"
    assert Path(user["user"]["client-key"]).exists()
