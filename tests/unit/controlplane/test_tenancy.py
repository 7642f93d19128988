"""Each cluster has its own closed range of keys; repeated calls change nothing, and removal leaves nothing."""

import asyncio
import filecmp
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.controlplane.fakes import FakeEtcd
from vkgateway.api.errors import InputError
from vkgateway.api.names import tenant_etcd_prefix
from vkgateway.kube.errors import NotLeader
from vkgateway.kube.write_gate import WriteGate
from vkgateway.planes.etcd import client as etcd_client
from vkgateway.planes.etcd import errors, generate
from vkgateway.planes.etcd.client import EtcdClient, EtcdKeys
from vkgateway.planes.etcd.connection import EtcdConnection
from vkgateway.planes.etcd.endpoints import ClientTls
from vkgateway.planes.etcd.pb import etcd_pb2 as pb
from vkgateway.planes.etcd.ranges import KeyRange
from vkgateway.planes.etcd.tenancy import Tenancy
from vkgateway.planes.pki import Authority

names = st.from_regex(r"[a-z](-?[a-z0-9]){0,30}", fullmatch=True)


@given(names, names, st.text(alphabet="abc/.-0~", max_size=8))
def test_key_range_of_a_tenant_holds_only_its_keys(mine: str, other: str, rest: str) -> None:
    keys = KeyRange.for_prefix(tenant_etcd_prefix(mine))
    assert keys.start <= f"{tenant_etcd_prefix(mine)}/{rest}".encode() < keys.end
    if other != mine:
        assert not keys.start <= f"{tenant_etcd_prefix(other)}/{rest}".encode() < keys.end
    for outside in ("/compute/x", tenant_etcd_prefix(mine), "compact_rev_key"):
        assert not keys.start <= outside.encode() < keys.end


async def test_authentication_is_enabled_after_root_exists() -> None:
    etcd = FakeEtcd(enabled=False)
    tenancy = Tenancy(etcd)
    await tenancy.ensure_root()
    await tenancy.ensure_compute()
    assert etcd.auth.enabled
    assert etcd.auth.users == {"root": {"root"}, "compute": {"compute"}}
    assert etcd.auth.roles["compute"] == {KeyRange(b"/compute/", b"/compute0"): True}


async def test_second_call_writes_nothing() -> None:
    etcd = FakeEtcd(enabled=False)
    tenancy = Tenancy(etcd)
    await tenancy.ensure_root()
    await tenancy.ensure_tenant("a")
    changes = etcd.auth.changes
    await tenancy.ensure_root()
    await tenancy.ensure_tenant("a")
    assert etcd.auth.changes == changes


async def test_tenant_is_refused_while_authentication_is_disabled() -> None:
    etcd = FakeEtcd(enabled=False)
    with pytest.raises(errors.EtcdAuthDisabled, match="keys of all others"):
        await Tenancy(etcd).ensure_tenant("a")
    assert etcd.auth.changes == 0


async def test_tenant_is_refused_after_authentication_was_disabled() -> None:
    etcd = FakeEtcd()
    tenancy = Tenancy(etcd)
    await tenancy.ensure_tenant("a")
    etcd.auth.enabled = False  # as in a new etcd, or after a restore from a backup
    with pytest.raises(errors.EtcdAuthDisabled):
        await tenancy.ensure_tenant("b")
    assert list(etcd.auth.users) == ["tenant-a"]


@pytest.mark.parametrize("done", range(5))
async def test_interrupted_tenant_is_completed(done: int) -> None:
    etcd = FakeEtcd()
    keys = KeyRange(b"/tenants/a/", b"/tenants/a0")
    if done > 0:
        await etcd.auth.add_role("tenant-a")
    if done > 1:
        await etcd.auth.grant_range("tenant-a", keys=keys)
    if done > 2:
        await etcd.auth.add_user("tenant-a")
    if done > 3:
        await etcd.auth.grant_role("tenant-a", role="tenant-a")
    await Tenancy(etcd).ensure_tenant("a")
    assert etcd.auth.users == {"tenant-a": {"tenant-a"}}
    assert etcd.auth.roles == {"tenant-a": {KeyRange(b"/tenants/a/", b"/tenants/a0"): True}}


async def test_excess_permissions_of_a_tenant_are_revoked() -> None:
    etcd = FakeEtcd()
    tenancy = Tenancy(etcd)
    await tenancy.ensure_tenant("a")
    await etcd.auth.add_role("root")
    await etcd.auth.grant_role("tenant-a", role="root")
    await etcd.auth.grant_range("tenant-a", keys=KeyRange(b"/", b"0"))
    await tenancy.ensure_tenant("a")
    assert etcd.auth.users["tenant-a"] == {"tenant-a"}
    assert etcd.auth.roles["tenant-a"] == {KeyRange(b"/tenants/a/", b"/tenants/a0"): True}


async def test_blocked_tenant_stays_blocked_until_it_is_allowed() -> None:
    etcd = FakeEtcd()
    tenancy = Tenancy(etcd)
    for name in ("a", "b"):
        await tenancy.ensure_tenant(name)
    await tenancy.block_writes("a")
    await tenancy.ensure_tenant("a")
    assert await tenancy.blocked_tenants() == ["a"]
    assert etcd.auth.roles["tenant-a"] == {KeyRange(b"/tenants/a/", b"/tenants/a0"): False}
    await tenancy.allow_writes("a")
    await tenancy.allow_writes("gone")
    assert await tenancy.blocked_tenants() == []
    assert etcd.auth.roles["tenant-a"] == {KeyRange(b"/tenants/a/", b"/tenants/a0"): True}


async def test_remove_tenant_deletes_one_tenant_only() -> None:
    etcd = FakeEtcd()
    tenancy = Tenancy(etcd)
    for name in ("a", "a-b", "ab"):
        await tenancy.ensure_tenant(name)
        await etcd.keys.put(f"/tenants/{name}/x", b"")
    assert await tenancy.remove_tenant("a") == 1
    assert await tenancy.remove_tenant("a") == 0
    assert await tenancy.list_tenants() == ["a-b", "ab"]
    assert sorted(etcd.auth.roles) == ["tenant-a-b", "tenant-ab"]
    assert sorted(etcd.keys.held) == [b"/tenants/a-b/x", b"/tenants/ab/x"]


class SlowConnection(EtcdConnection):
    """Connection to an etcd that aborts a delete of more than 200 keys, as a real one does when that takes seconds."""

    def __init__(self, keys: int) -> None:
        self.held = [b"/tenants/a/%05d" % number for number in range(keys)] + [b"/tenants/ab/x"]

    async def call(self, method: str, request: Any, answer: Any = None, *, timeout: float | None = None) -> Any:
        found = [key for key in self.held if request.key <= key < request.range_end]
        if method == "KV/Range":
            assert request.keys_only
            page = found[: request.limit or None]
            return pb.RangeResponse(kvs=[{"key": key} for key in page], more=len(page) < len(found))
        if len(found) > 200:
            raise errors.EtcdUnavailable("etcdserver: request timed out")
        self.held = [key for key in self.held if key not in found]
        return pb.DeleteRangeResponse(deleted=len(found))


@pytest.mark.parametrize("keys", [0, 1, 200, 201, 500])
async def test_keys_are_deleted_in_batches(keys: int) -> None:
    connection = SlowConnection(keys)
    assert await EtcdKeys(connection).delete_range(KeyRange.for_prefix("/tenants/a")) == keys
    assert connection.held == [b"/tenants/ab/x"]


@pytest.mark.parametrize(
    ("code", "details", "kind"),
    [
        ("UNAVAILABLE", "failed to connect", errors.EtcdUnavailable),
        ("DEADLINE_EXCEEDED", "", errors.EtcdUnavailable),
        ("PERMISSION_DENIED", "etcdserver: permission denied", errors.EtcdDenied),
        ("FAILED_PRECONDITION", "etcdserver: user name already exists", errors.EtcdExists),
        ("FAILED_PRECONDITION", "etcdserver: role name not found", errors.EtcdNotFound),
        ("INVALID_ARGUMENT", "etcdserver: revision of auth store is old", errors.EtcdStale),
        ("OUT_OF_RANGE", "etcdserver: mvcc: required revision has been compacted", errors.EtcdCompacted),
        ("RESOURCE_EXHAUSTED", "etcdserver: mvcc: database space exceeded", errors.EtcdFull),
        ("UNKNOWN", "something else", errors.EtcdError),
    ],
)
def test_errors_are_distinguished_by_their_message(code: str, details: str, kind: type) -> None:
    error = errors.error_for(code, details, what="Put", target="x:2379")
    assert type(error) is kind
    assert "Put" in str(error)
    assert "at x:2379" in str(error)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        ("last error: UNKNOWN: ipv4:10.0.0.1:2379: Failed to connect to remote host: Connection refused", "refused"),
        ("errors resolving etcd:2379: [field:hostname lookup error: Domain name not found]", "name does not resolve"),
        ("Tls handshake failed: CERTIFICATE_VERIFY_FAILED: unable to get local issuer certificate", "did not sign"),
        ("Custom verification check failed: Hostname Verification Check failed.", "lacks this name"),
        ("Unwrap failed (TSI_DATA_CORRUPTED)", "rejects the gateway's client certificate"),
        ("Tls handshake failed: SSL_ERROR_SSL: WRONG_VERSION_NUMBER", "does not speak TLS"),
        ("ipv4:10.0.0.1:2379: Failed to connect to remote host: connect() timed out", "no answer in time"),
        ("last error: UNKNOWN: ipv4:10.0.0.1:2379: tcp handshaker shutdown", "no answer in time"),
        ("etcdserver: request timed out", "lost its quorum"),
    ],
)
def test_unavailable_etcd_is_explained(details: str, reason: str) -> None:
    error = errors.error_for("UNAVAILABLE", details, what="Put", target="x:2379")
    assert type(error) is errors.EtcdUnavailable
    assert str(error).startswith("etcd at x:2379 is unavailable: ")
    assert reason in str(error)
    assert error.hint


@pytest.mark.parametrize("endpoint", ["http://127.0.0.1:2379", "127.0.0.1:2379", "https://"])
async def test_endpoint_without_tls_is_refused(endpoint: str) -> None:
    with pytest.raises(InputError, match="is not an https address"):
        EtcdClient([endpoint], tls=ClientTls(ca=b"", cert=b"", key=b""))


async def test_unreachable_etcd_is_unavailable() -> None:
    ca = Authority.create("etcd")
    pair = ca.issue("root", client=True)
    tls = ClientTls(ca=ca.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    async with EtcdClient(["https://127.0.0.1:1", "https://127.0.0.1:2"], tls=tls, timeout=1) as client:
        with pytest.raises(errors.EtcdUnavailable, match=r"etcd at 127\.0\.0\.1:2 is unavailable: .*\(Range\)"):
            await client.keys.count_range(KeyRange.for_prefix("/x"))


async def test_changes_need_permission_of_gate() -> None:
    ca = Authority.create("etcd")
    pair = ca.issue("root", client=True)
    tls = ClientTls(ca=ca.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    gate = WriteGate(lambda: 0.0)
    async with EtcdClient(["https://127.0.0.1:1"], tls=tls, timeout=1, gate=gate) as client:
        keys = KeyRange.for_prefix("/x")
        for refused in (client.keys.put("/x", b""), client.auth.add_user("a"), client.auth.delete_role("a")):
            with pytest.raises(NotLeader):
                await refused
        for read in (client.keys.count_range(keys), client.auth.list_users(), client.auth.is_enabled()):
            with pytest.raises(errors.EtcdUnavailable):
                await read
        with pytest.raises(NotLeader):
            await client.auth.revoke_range("a", keys=keys)
        gate.upkeep.extend(1.0)
        with pytest.raises(errors.EtcdUnavailable):
            await client.auth.revoke_range("a", keys=keys)


async def test_proxy_in_the_environment_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[bytes] = []

    async def proxy(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.append(await reader.readline())
        writer.close()

    ca = Authority.create("etcd")
    pair = ca.issue("root", client=True)
    tls = ClientTls(ca=ca.cert_pem, cert=pair.cert_pem, key=pair.key_pem)
    for name in ("no_proxy", "no_grpc_proxy"):
        monkeypatch.delenv(name, raising=False)
    async with await asyncio.start_server(proxy, "127.0.0.1", 0) as server:
        port = server.sockets[0].getsockname()[1]
        for name in ("http_proxy", "https_proxy", "grpc_proxy"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{port}")
        async with EtcdClient(["https://127.0.0.1:1"], tls=tls, timeout=1) as client:
            with pytest.raises(errors.EtcdUnavailable):
                await client.keys.count_range(KeyRange.for_prefix("/x"))
    assert asked == []


def test_generated_module_matches_the_protocol_file(tmp_path: Path) -> None:
    pytest.importorskip("grpc_tools", reason="wants the development dependency grpcio-tools")
    generate.generate(tmp_path)
    committed = Path(etcd_client.__file__).parent / "pb" / "etcd_pb2.py"
    assert filecmp.cmp(tmp_path / "etcd_pb2.py", committed, shallow=False), "run the generator and commit"
