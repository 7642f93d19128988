"""TLS without a socket: what goes in comes out, and little memory is kept for it."""

from __future__ import annotations

import ctypes
import ssl

import pytest

from vkgateway.controlplane.pki import Authority
from vkgateway.kube.tls import client_context, load_identity
from vkgateway.kube.tls_engine import CHUNK_BYTES, TlsEngine


@pytest.fixture(scope="module")
def contexts() -> tuple[ssl.SSLContext, ssl.SSLContext]:
    authority = Authority.create("test")
    keys = authority.issue("server", server=True, ips=["127.0.0.1"])
    served = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    load_identity(served, cert=keys.cert_pem, key=keys.key_pem)
    return client_context(ca=authority.cert_pem), served


def _pair(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> tuple[TlsEngine, TlsEngine]:
    client = TlsEngine(contexts[0], server_side=False, server_name="127.0.0.1")
    server = TlsEngine(contexts[1], server_side=True)
    client.start_handshake()
    for _ in range(3):
        server.decrypt_data(client.take_outgoing())
        client.decrypt_data(server.take_outgoing())
    assert client.is_established
    assert server.is_established
    return client, server


@pytest.mark.parametrize("size", [1, CHUNK_BYTES - 1, CHUNK_BYTES, CHUNK_BYTES + 1, 1_000_000])
def test_what_goes_in_comes_out(contexts: tuple[ssl.SSLContext, ssl.SSLContext], size: int) -> None:
    client, server = _pair(contexts)
    said = bytes(range(251)) * (size // 251 + 1)
    client.encrypt_data(said[:size])
    client.encrypt_close_notify()
    assert server.decrypt_data(client.take_outgoing()) == said[:size]
    assert server.is_ended


def test_records_may_come_in_any_pieces(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    client, server = _pair(contexts)
    client.encrypt_data(b"x" * 100_000)
    sent = client.take_outgoing()
    got = b"".join(server.decrypt_data(sent[start : start + 977]) for start in range(0, len(sent), 977))
    assert got == b"x" * 100_000


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _allocated() -> int:
    """Bytes that the C library has given out."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library does not tell what it has given out")
    mallinfo2.restype = _Mallinfo
    told = mallinfo2()
    return int(told.uordblks + told.hblkhd)


def test_little_memory_stays_with_a_connection_that_took_in_much(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """What an event loop reads at once is 256 KiB; OpenSSL's buffers never shrink."""
    pairs = [_pair(contexts) for _ in range(20)]
    sent = []
    for client, _ in pairs:
        pieces = []
        for _ in range(8):
            client.encrypt_data(b"x" * CHUNK_BYTES)
            pieces.append(client.take_outgoing())
        sent.append(b"".join(pieces))
    before = _allocated()
    for (_, server), data in zip(pairs, sent, strict=True):
        assert len(server.decrypt_data(data)) == 8 * CHUNK_BYTES
    assert 0 < (_allocated() - before) / len(pairs) < 3 * CHUNK_BYTES
