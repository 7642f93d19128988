"""CAs and certificates of the platform: etcd's, and the compute cluster's credentials."""

from __future__ import annotations

import contextlib
import datetime
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vkgateway.api.errors import InputError
from vkgateway.planes.atomic_files import SECRET_MODE, write_file
from vkgateway.planes.credentials import Credentials
from vkgateway.planes.etcd.tenancy import ROOT_USER
from vkgateway.planes.pki import (
    Authority,
    alternative_names,
    cert_expiry,
    common_name,
    is_authority,
    is_matching_pair,
    needs_renewal,
)
from vkgateway_platform.embedded.paths import PlatformPaths

ETCD_CA = "etcd-ca"
ETCD_PEER_CA = "etcd-peer-ca"
ETCD_SERVER = "etcd"
ETCD_PEER = "etcd-peer"
ETCD_ROOT = "etcd-root"
HOLLOW_SERVER = "kwok"
GATEWAY = "gateway"
GATEWAY_USER = "vkgateway"
"""User of the gateway in the compute cluster; `gateway/rbac` has its permissions."""
PROVISIONER = "provisioner"
PROVISIONER_USER = "vkgateway-provisioner"
"""User of the volume provisioner; `provisioner/manifests.yaml` has its permissions."""
_COMPUTE = "compute"
_LOOPBACK = ("127.0.0.1",)
_LOCALHOST = ("localhost",)


@dataclass(frozen=True, slots=True)
class PlatformPki:
    """CAs of the platform: `etcd` for etcd and its clients, `compute` for the compute cluster."""

    etcd: Authority
    compute: Credentials


def ensure_pki(paths: PlatformPaths, *, now: datetime.datetime) -> PlatformPki:
    """Return the platform's CAs, created if they are missing, and issue certificates that are missing or expire soon.

    Raises:
        InputError: a key or certificate is damaged. A CA is never created while half of one exists, since all
        certificates that it issued would be lost.
    """
    etcd = _ensure_authority(paths.pki_dir, ETCD_CA, now=now)
    # Members of the etcd cluster trust each other by a separate CA, so that a client cannot act as a member.
    peers = _ensure_authority(paths.pki_dir, ETCD_PEER_CA, now=now)
    compute = _ensure_credentials(paths.compute_credentials, now=now)
    for name, authority in ((ETCD_SERVER, etcd), (ETCD_PEER, peers)):
        ensure_certificate(
            paths.pki_dir, name, authority=authority, cn="etcd", dns=_LOCALHOST, ips=_LOOPBACK, server=True, now=now
        )
    ensure_certificate(paths.pki_dir, ETCD_ROOT, authority=etcd, cn=ROOT_USER, now=now)
    ensure_certificate(
        paths.hollow_dir, HOLLOW_SERVER, authority=compute.ca, cn="kwok", ips=_LOOPBACK, server=True, now=now
    )
    ensure_certificate(paths.pki_dir, GATEWAY, authority=compute.ca, cn=GATEWAY_USER, now=now)
    ensure_certificate(paths.pki_dir, PROVISIONER, authority=compute.ca, cn=PROVISIONER_USER, now=now)
    return PlatformPki(etcd=etcd, compute=compute)


def first_expiry(paths: PlatformPaths) -> datetime.datetime | None:
    """Return when the first renewable certificate expires (UTC, aware); None if there are none."""
    return min((cert_expiry(pem) for pem in _read_certificates(paths, authorities=False).values()), default=None)


def certificates_to_renew(paths: PlatformPaths, *, now: datetime.datetime) -> list[str]:
    """Return the names of the certificates to renew at `now` (aware)."""
    return sorted(
        name for name, pem in _read_certificates(paths, authorities=False).items() if needs_renewal(pem, now=now)
    )


def first_authority_expiry(paths: PlatformPaths) -> tuple[str, datetime.datetime] | None:
    """Return the name and expiry (UTC, aware) of the CA that expires first; CAs are not renewed."""
    ends = {name: cert_expiry(pem) for name, pem in _read_certificates(paths, authorities=True).items()}
    return min(ends.items(), key=lambda item: item[1], default=None)


def _read_certificates(paths: PlatformPaths, *, authorities: bool) -> dict[str, bytes]:
    """Return certificates (PEM) by file name in the data directory, without broken and previous ones."""
    found = {}
    for folder in (
        paths.pki_dir,
        paths.compute_credentials,
        paths.compute_dir,
        paths.hollow_dir,
        paths.node_dir / "pki",
    ):
        for file in folder.glob("*.crt"):
            with contextlib.suppress(OSError, ValueError):
                pem = file.read_bytes()
                if is_authority(pem) is authorities and not file.stem.endswith("-before"):
                    found[str(file.relative_to(paths.data_dir))] = pem
    return found


def ensure_certificate(
    directory: Path,
    name: str,
    *,
    authority: Authority,
    cn: str,
    dns: Sequence[str] = (),
    ips: Sequence[str] = (),
    server: bool = False,
    now: datetime.datetime,
) -> bool:
    """Issue `name.crt` and `name.key` for `cn` unless the existing ones fit; return whether they are new."""
    try:
        pem = (directory / f"{name}.crt").read_bytes()
        fits = (
            is_matching_pair(pem, (directory / f"{name}.key").read_bytes())
            and authority.has_signed(pem)
            and not needs_renewal(pem, now=now)
            and common_name(pem) == cn
            and alternative_names(pem) == {*dns, *ips}
        )
    except (FileNotFoundError, ValueError):
        fits = False
    if not fits:
        pair = authority.issue(cn, dns=dns, ips=ips, server=server, client=True, now=now)
        pair.write(directory, name)
    return not fits


def _ensure_authority(directory: Path, name: str, *, now: datetime.datetime) -> Authority:
    certificate, key = directory / f"{name}.crt", directory / f"{name}.key"
    if not certificate.exists() and not key.exists():
        authority = Authority.create(f"vkgateway {name}", now=now)
        authority.write(directory, name)
        return authority
    try:
        return Authority.from_pem(certificate.read_bytes(), key.read_bytes())
    except (FileNotFoundError, ValueError) as error:
        raise _damaged_error(certificate, why=error) from error


def _ensure_credentials(directory: Path, *, now: datetime.datetime) -> Credentials:
    files = {path.name: path.read_bytes() for path in sorted(directory.glob("*"))} if directory.exists() else {}
    try:
        found = Credentials.from_files(files) if files else Credentials.create(_COMPUTE, now=now)
    except (KeyError, ValueError) as error:
        raise _damaged_error(directory, why=error) from error
    credentials = found.renew_admin(now=now)
    for name, data in credentials.to_files().items():
        write_file(directory / name, data, mode=SECRET_MODE)
    return credentials


def _damaged_error(path: Path, *, why: Exception) -> InputError:
    reason = f"{why} is missing" if isinstance(why, KeyError) else str(why)
    return InputError(
        f"the platform's keys in {path} are damaged: {reason}",
        hint="Restore them from a backup, or start over with `vkgateway down --purge`.",
    )
