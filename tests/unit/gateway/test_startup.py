"""Tests of lazy imports and connections at startup."""

from __future__ import annotations

import subprocess
import sys

import pytest

from vkgateway.api.errors import InputError
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.errors import EtcdUnavailable
from vkgateway.planes.pki import Authority
from vkgateway.serve.datastore import LazyDatastore

_DEAR = ("aiohttp", "google.protobuf", "grpc", "jinja2", "kubernetes_asyncio", "numpy", "rich")
_PROGRAM = f"""
import sys
from vkgateway.cli import serve
with serve._fast_imports():
    import vkgateway.serve.daemon
print(*[name for name in {_DEAR} if name in sys.modules])
import gc, rich
print(gc.isenabled())
"""


def test_startup_imports_nothing_for_new_tenants() -> None:
    completed = subprocess.run([sys.executable, "-c", _PROGRAM], check=True, capture_output=True, text=True)
    assert completed.stdout.split("\n") == ["", "True", ""]


def test_invalid_etcd_endpoint_fails_at_startup() -> None:
    with pytest.raises(InputError, match="no etcd endpoint"):
        LazyDatastore((), tls=ClientTls(ca=b"", cert=b"", key=b""))


async def test_etcd_is_connected_at_first_use() -> None:
    ca = Authority.create("etcd")
    pair = ca.issue("root", client=True)
    tls = ClientTls(ca=ca.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    async with LazyDatastore(["https://127.0.0.1:1"], tls=tls) as datastore:
        with pytest.raises(EtcdUnavailable):
            await datastore.ensure_tenant("alpha")
        with pytest.raises(EtcdUnavailable):
            await datastore.remove_tenant("alpha")
