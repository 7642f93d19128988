"""Faults: frozen and slow programs, certificates that expire soon, and a pair of etcd members."""

from __future__ import annotations

import base64
import contextlib
import datetime
import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from urllib.request import Request

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from tests.e2e.cluster import Platform, eventually
from tests.e2e.prometheus import OPENER
from tests.support.machine import patience
from tests.support.ports import free_port
from vkgateway.planes.etcd.tenancy import ROOT_USER
from vkgateway.planes.pki import Authority


@contextlib.contextmanager
def slowed(pid: int, *, stopped: float, running: float) -> Iterator[None]:
    """Stop and continue a process in turns in the block, as if it had too little CPU. Durations are seconds."""
    ended = threading.Event()

    def alternate() -> None:
        while not ended.is_set():
            os.kill(pid, signal.SIGSTOP)
            time.sleep(stopped)
            os.kill(pid, signal.SIGCONT)
            ended.wait(running)

    thread = threading.Thread(target=alternate, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
        os.kill(pid, signal.SIGCONT)


def write_expiring_certificates(platform: Platform, folder: Path, *, days: int, authority_days: int) -> None:
    """Write etcd's authority and the gateway's client certificate again, so that they expire in some days.

    The files are `ca.crt`, `root.crt` and `root.key`.
    """
    folder.mkdir(exist_ok=True)
    pki = platform.data_dir / "pki"
    cert_pem, key_pem = (pki / "etcd-ca.crt").read_bytes(), (pki / "etcd-ca.key").read_bytes()
    Authority.from_pem(cert_pem, key_pem).issue(ROOT_USER, client=True, days=days).write(folder, "root")
    old, key = x509.load_pem_x509_certificate(cert_pem), serialization.load_pem_private_key(key_pem, password=None)
    assert isinstance(key, ec.EllipticCurvePrivateKey)
    builder = (
        x509.CertificateBuilder()
        .subject_name(old.subject)
        .issuer_name(old.issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(old.not_valid_before_utc)
        .not_valid_after(datetime.datetime.now(datetime.UTC) + datetime.timedelta(days=authority_days))
    )
    for extension in old.extensions:
        builder = builder.add_extension(extension.value, critical=extension.critical)
    (folder / "ca.crt").write_bytes(builder.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))


@dataclass(frozen=True)
class EtcdMember:
    """A running member of etcd without TLS."""

    url: str
    process: subprocess.Popen[bytes]

    def put(self, key: str, value: str) -> None:
        """Write a key."""
        body = {name: base64.b64encode(text.encode()).decode() for name, text in (("key", key), ("value", value))}
        with OPENER.open(Request(f"{self.url}/v3/kv/put", data=json.dumps(body).encode()), timeout=patience(20)):
            pass

    @contextlib.contextmanager
    def busy(self, clients: int = 4) -> Iterator[None]:
        """Write continuously in the block."""
        ended = threading.Event()

        def write() -> None:
            while not ended.is_set():
                with contextlib.suppress(OSError):  # a slowed member may lose its leader for a while
                    self.put("key", "value" * 100)

        threads = [threading.Thread(target=write, daemon=True) for _ in range(clients)]
        for thread in threads:
            thread.start()
        try:
            yield
        finally:
            ended.set()
            for thread in threads:
                thread.join()


@contextlib.contextmanager
def etcd_pair(platform: Platform, folder: Path) -> Iterator[tuple[EtcdMember, EtcdMember]]:
    """Run an etcd of two members, which needs both, with the platform's program. The platform's etcd has one member."""
    program = platform.vkgateway("binaries", "path", "etcd").strip()
    names, peers, clients = ("first", "second"), (free_port(), free_port()), (free_port(), free_port())
    cluster = ",".join(f"{name}=http://127.0.0.1:{port}" for name, port in zip(names, peers, strict=True))
    with contextlib.ExitStack() as stack:
        members = []
        for name, peer, client in zip(names, peers, clients, strict=True):
            url = f"http://127.0.0.1:{client}"
            flags = {
                "name": name,
                "data-dir": folder / name,
                "initial-cluster": cluster,
                "listen-peer-urls": f"http://127.0.0.1:{peer}",
                "initial-advertise-peer-urls": f"http://127.0.0.1:{peer}",
                "listen-client-urls": url,
                "advertise-client-urls": url,
            }
            log = stack.enter_context((folder / f"{name}.log").open("wb"))
            argv = [program, *(f"--{flag}={value}" for flag, value in flags.items())]
            process = subprocess.Popen(argv, stdout=log, stderr=log)
            stack.callback(process.wait, 30)
            stack.callback(process.kill)
            members.append(EtcdMember(url, process))
        eventually(lambda: _serves(members[0]), what="etcd of two members")
        yield members[0], members[1]


def _serves(member: EtcdMember) -> bool:
    with contextlib.suppress(OSError):
        member.put("key", "value")
        return True
    return False
