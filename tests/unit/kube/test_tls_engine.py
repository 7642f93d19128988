"""TLS without a socket: data passes unchanged, and connections retain little memory."""

from __future__ import annotations

import ctypes
import gc
import ssl

import pytest

from vkgateway.kube.tls import client_context, load_identity
from vkgateway.kube.tls_engine import CHUNK_BYTES, TlsEngine
from vkgateway.planes.pki import Authority


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
def test_data_passes_unchanged(contexts: tuple[ssl.SSLContext, ssl.SSLContext], size: int) -> None:
    client, server = _pair(contexts)
    data = bytes(range(251)) * (size // 251 + 1)
    client.encrypt_data(data[:size])
    client.encrypt_close_notify()
    assert server.decrypt_data(client.take_outgoing()) == data[:size]
    assert server.is_ended


def test_records_arrive_in_arbitrary_pieces(contexts: tuple[ssl.SSLContext, ssl.SSLContext]) -> None:
    client, server = _pair(contexts)
    client.encrypt_data(b"x" * 100_000)
    sent = client.take_outgoing()
    received = b"".join(server.decrypt_data(sent[start : start + 977]) for start in range(0, len(sent), 977))
    assert received == b"x" * 100_000


class _Mallinfo(ctypes.Structure):
    _fields_ = tuple(
        (name, ctypes.c_size_t)
        for name in (
            *("arena", "ordblks", "smblks", "hblks", "hblkhd"),
            *("usmblks", "fsmblks", "uordblks", "fordblks", "keepcost"),
        )
    )


def _allocated() -> int:
    """Return the bytes that the C library has allocated."""
    mallinfo2 = getattr(ctypes.CDLL(None), "mallinfo2", None)
    if mallinfo2 is None:
        pytest.skip("this C library does not report allocated bytes")
    mallinfo2.restype = _Mallinfo
    info = mallinfo2()
    return int(info.uordblks + info.hblkhd)


def test_connection_retains_little_memory_after_large_reads(
    contexts: tuple[ssl.SSLContext, ssl.SSLContext],
) -> None:
    """An event loop reads up to 256 KiB at a time, and OpenSSL's buffers never shrink."""
    pairs = [_pair(contexts) for _ in range(20)]
    sent = []
    for client, _ in pairs:
        pieces = []
        for _ in range(8):
            client.encrypt_data(b"x" * CHUNK_BYTES)
            pieces.append(client.take_outgoing())
        sent.append(b"".join(pieces))
    gc.collect()  # a collection in between would free the garbage of other tests
    before = _allocated()
    for (_, server), data in zip(pairs, sent, strict=True):
        assert len(server.decrypt_data(data)) == 8 * CHUNK_BYTES
    assert 0 < (_allocated() - before) / len(pairs) < 3 * CHUNK_BYTES
