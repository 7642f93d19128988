"""The platform's CAs and certificates: created once, renewed in time, never replaced if incomplete."""

import datetime
import shutil
from pathlib import Path

import pytest

from vkgateway.api.errors import InputError
from vkgateway.planes.pki import Authority, alternative_names, common_name, is_matching_pair
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import (
    ETCD_CA,
    ETCD_PEER_CA,
    ETCD_ROOT,
    ETCD_SERVER,
    HOLLOW_SERVER,
    ensure_pki,
    first_expiry,
)
from vkgateway_platform.embedded.status import _certificate_problems

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


@pytest.fixture
def paths(tmp_path: Path) -> PlatformPaths:
    paths = PlatformPaths(tmp_path)
    ensure_pki(paths, now=NOW)
    return paths


def content(paths: PlatformPaths) -> dict[str, bytes]:
    return {str(path): path.read_bytes() for path in sorted(paths.data_dir.rglob("*")) if path.is_file()}


def test_second_call_changes_nothing(paths: PlatformPaths) -> None:
    before = content(paths)
    ensure_pki(paths, now=NOW)
    assert content(paths) == before


def test_certificates_are_renewed_but_no_ca(paths: PlatformPaths) -> None:
    before = content(paths)
    ensure_pki(paths, now=NOW + datetime.timedelta(days=300))
    changed = {Path(path).name for path, data in content(paths).items() if before[path] != data}
    assert {"etcd.crt", "etcd.key", "etcd-root.crt", "kwok.crt"} <= changed
    assert not {"etcd-ca.crt", "etcd-ca.key", "etcd-peer-ca.crt", "ca.crt", "sa.key"} & changed


def test_admin_kubeconfig_has_the_renewed_certificate(paths: PlatformPaths) -> None:
    """KWOK and the CLI use it: `up` once wrote the expired certificate into their kubeconfig again."""
    before = ensure_pki(paths, now=NOW).compute.admin
    admin = ensure_pki(paths, now=NOW + datetime.timedelta(days=300)).compute.admin
    assert admin != before
    assert admin.cert_pem == (paths.compute_credentials / "admin.crt").read_bytes()


def test_first_expiry_is_reported(paths: PlatformPaths, tmp_path: Path) -> None:
    year = datetime.timedelta(days=365)
    end = first_expiry(paths)
    assert end is not None
    assert abs(end - NOW - year) < datetime.timedelta(hours=1)
    assert first_expiry(PlatformPaths(tmp_path / "none")) is None
    assert _certificate_problems(paths, now=NOW) == []
    (soon,) = _certificate_problems(paths, now=end - datetime.timedelta(days=30))
    assert soon == (
        f"the first of the platform's certificates ends on {end:%Y-%m-%d}; "
        "`vkgateway logs renewal` shows why they were not renewed; `vkgateway up` renews them"
    )
    (late,) = _certificate_problems(paths, now=end)
    assert "has ended on" in late


def test_certificates_have_their_users_and_groups(paths: PlatformPaths) -> None:
    etcd_authority = Authority.from_pem(*((paths.pki_dir / f"{ETCD_CA}.{end}").read_bytes() for end in ("crt", "key")))
    root = (paths.pki_dir / f"{ETCD_ROOT}.crt").read_bytes()
    assert common_name(root) == "root"
    assert etcd_authority.has_signed(root)
    assert "127.0.0.1" in alternative_names((paths.pki_dir / f"{ETCD_SERVER}.crt").read_bytes())
    assert alternative_names((paths.hollow_dir / f"{HOLLOW_SERVER}.crt").read_bytes()) == {"127.0.0.1"}


def test_etcd_client_is_not_accepted_as_a_member(paths: PlatformPaths) -> None:
    peers = Authority.from_pem(*((paths.pki_dir / f"{ETCD_PEER_CA}.{end}").read_bytes() for end in ("crt", "key")))
    assert not peers.has_signed((paths.pki_dir / f"{ETCD_ROOT}.crt").read_bytes())


def test_keys_are_private(paths: PlatformPaths) -> None:
    keys = list(paths.data_dir.rglob("*.key"))
    assert keys
    assert {key.stat().st_mode & 0o777 for key in keys} == {0o600}


@pytest.mark.parametrize("lost", ["etcd-ca.key", "etcd-ca.crt", "compute/ca.key"])
def test_incomplete_ca_is_an_error_that_names_it(paths: PlatformPaths, lost: str) -> None:
    (paths.pki_dir / lost).unlink()
    before = content(paths)
    with pytest.raises(InputError, match="damaged") as caught:
        ensure_pki(paths, now=NOW)
    assert str(paths.pki_dir) in str(caught.value)
    assert content(paths) == before


def test_broken_key_is_an_error_that_names_it(paths: PlatformPaths) -> None:
    (paths.pki_dir / "etcd-ca.key").write_text("nonsense")
    with pytest.raises(InputError, match="etcd-ca"):
        ensure_pki(paths, now=NOW)


def test_certificate_with_another_key_is_issued_again(paths: PlatformPaths) -> None:
    """The writer was stopped between the two."""
    shutil.copy(paths.pki_dir / "etcd-peer.key", paths.pki_dir / "etcd.key")
    ensure_pki(paths, now=NOW)
    assert is_matching_pair(*((paths.pki_dir / f"etcd.{end}").read_bytes() for end in ("crt", "key")))


def test_missing_certificate_is_issued_again(paths: PlatformPaths) -> None:
    shutil.rmtree(paths.hollow_dir)
    ensure_pki(paths, now=NOW)
    assert (paths.hollow_dir / f"{HOLLOW_SERVER}.key").exists()
