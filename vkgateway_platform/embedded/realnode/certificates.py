"""Certificates and kubeconfigs of the node's programs."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

from vkgateway.planes.atomic_files import write_file
from vkgateway.planes.pki import Authority, is_matching_pair, needs_renewal
from vkgateway_platform.embedded.realnode import configs, manifests
from vkgateway_platform.embedded.realnode.options import RealNodeOptions


@dataclass(frozen=True, slots=True)
class _Certificate:
    """One certificate of the node: its file name, its subject, and its purpose."""

    file: str
    user: str
    organizations: tuple[str, ...] = ()
    server: bool = False


def write_certificates(options: RealNodeOptions, *, authority: Authority) -> None:
    """Write the CA, the certificates that are missing, of another CA or about to expire, and the kubeconfigs."""
    pki = options.folders.pki_dir
    write_file(pki / "ca.crt", authority.cert_pem)
    for wanted in _certificate_specs(options.name):
        if not _is_valid(pki / f"{wanted.file}.crt", authority):
            authority.issue(
                wanted.user,
                organizations=wanted.organizations,
                dns=(options.name,) if wanted.server else (),
                ips=(options.network.node_address,) if wanted.server else (),
                client=not wanted.server,
                server=wanted.server,
            ).write(pki, wanted.file)
    for user in ("kubelet", "kube-proxy", "coredns", "netpol"):
        write_file(pki / f"{user}.kubeconfig", configs.user_kubeconfig(options, user=user).encode(), mode=0o600)


def _certificate_specs(node: str) -> tuple[_Certificate, ...]:
    return (
        _Certificate("kubelet", f"system:node:{node}", ("system:nodes",)),
        _Certificate("kubelet-server", f"system:node:{node}", ("system:nodes",), server=True),
        _Certificate("kube-proxy", "system:kube-proxy"),
        _Certificate("coredns", "system:coredns"),
        _Certificate("netpol", manifests.NETPOL_USER),
    )


def _is_valid(certificate: Path, authority: Authority) -> bool:
    try:
        pem, key = certificate.read_bytes(), certificate.with_suffix(".key").read_bytes()
    except FileNotFoundError:
        return False
    fits = is_matching_pair(pem, key) and authority.has_signed(pem)
    return fits and not needs_renewal(pem, now=datetime.now(UTC))
