"""Certificates have the requested names, groups and usages, and keys stay private on disk."""

import datetime
import ssl
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from vkgateway.planes import pki

NOW = datetime.datetime(2026, 1, 1, tzinfo=datetime.UTC)


def test_issued_certificate_has_user_groups_names_and_usages() -> None:
    authority = pki.Authority.create("ca", now=NOW)
    pair = authority.issue(
        "alice", organizations=("a", "b"), dns=("localhost",), ips=("10.0.0.1", "::1"), client=True, now=NOW
    )
    certificate = x509.load_pem_x509_certificate(pair.cert_pem)
    groups = certificate.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    usages = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert pki.common_name(pair.cert_pem) == "alice"
    assert [group.value for group in groups] == ["a", "b"]
    assert pki.alternative_names(pair.cert_pem) == {"localhost", "10.0.0.1", "::1"}
    assert list(usages) == [ExtendedKeyUsageOID.CLIENT_AUTH]
    assert not certificate.extensions.get_extension_for_class(x509.BasicConstraints).value.ca


def test_has_signed_distinguishes_authorities_of_the_same_name() -> None:
    first, second = pki.Authority.create("ca"), pki.Authority.create("ca")
    pair = first.issue("x", client=True)
    assert first.has_signed(pair.cert_pem)
    assert not second.has_signed(pair.cert_pem)


def test_authority_is_read_back(tmp_path: Path) -> None:
    authority = pki.Authority.create("ca")
    certificate, key = authority.write(tmp_path)
    again = pki.Authority.from_pem(certificate.read_bytes(), key.read_bytes())
    assert again.cert_pem == authority.cert_pem
    assert authority.has_signed(again.issue("x").cert_pem)


def test_key_of_another_certificate_is_refused() -> None:
    with pytest.raises(ValueError, match="'one'"):
        pki.Authority.from_pem(pki.Authority.create("one").cert_pem, pki.Authority.create("two").key_pem)


def test_keys_are_readable_by_the_owner_only_and_not_in_repr(tmp_path: Path) -> None:
    pair = pki.Authority.create("ca").issue("x", server=True, dns=("x",))
    certificate, key = pair.write(tmp_path / "deep" / "er", "x")
    assert certificate.stat().st_mode & 0o777 == 0o644
    assert key.stat().st_mode & 0o777 == 0o600
    assert (tmp_path / "deep" / "er").stat().st_mode & 0o777 == 0o700
    assert "PRIVATE" not in repr(pair)


def test_write_restricts_the_mode_of_an_existing_key(tmp_path: Path) -> None:
    pair = pki.Authority.create("ca").issue("x")
    _, key = pair.write(tmp_path, "x")
    key.chmod(0o644)
    pair.write(tmp_path, "x")
    assert key.stat().st_mode & 0o777 == 0o600


def test_python_tls_accepts_the_chain(tmp_path: Path) -> None:
    authority = pki.Authority.create("ca")
    certificate, key = authority.issue("x", server=True, dns=("x",)).write(tmp_path, "x")
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cadata=authority.cert_pem.decode())
    context.load_cert_chain(certificate, key)
    assert context.cert_store_stats()["x509_ca"] == 1


@pytest.mark.parametrize(("day", "due"), [(0, False), (190, False), (200, True), (400, True)])
def test_renewal_is_due_when_a_third_of_the_lifetime_is_left(day: int, due: bool) -> None:
    pair = pki.Authority.create("ca", now=NOW).issue("x", days=300, now=NOW)
    assert pki.needs_renewal(pair.cert_pem, now=NOW + datetime.timedelta(days=day, hours=1)) == due
    assert pki.cert_expiry(pair.cert_pem) == NOW + datetime.timedelta(days=300)


def test_signing_key_is_read_back() -> None:
    key = pki.SigningKey.create()
    assert pki.SigningKey.from_pem(key.private_pem) == key


def test_certificate_from_the_future_is_renewed_unless_this_clock_is_slow() -> None:
    now = datetime.datetime(2026, 6, 1, tzinfo=datetime.UTC)
    pair = pki.Authority.create("ca").issue("a", client=True, now=now)
    assert not pki.needs_renewal(pair.cert_pem, now=now)
    assert pki.needs_renewal(pair.cert_pem, now=now - datetime.timedelta(hours=2))
    assert not pki.needs_renewal(pair.cert_pem, now=datetime.datetime(1970, 1, 1, tzinfo=datetime.UTC))
