"""Health checks of the platform's processes: an existing process may hang or serve nothing."""

from __future__ import annotations

import asyncio
import datetime
import ssl
from collections.abc import Awaitable, Callable, Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import msgspec
import psutil

from vkgateway.api import times
from vkgateway.api.errors import InputError
from vkgateway.kube import errors
from vkgateway.kube.client import Client
from vkgateway.kube.leader_election import Lease
from vkgateway.kube.resources import LEASES
from vkgateway.planes.supervisor.spec import ProcessState
from vkgateway_platform.embedded import compute, etcd, gateway_process
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.kubelet import process as hollow_kubelet
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import ETCD_CA, ETCD_ROOT
from vkgateway_platform.embedded.realnode.processes import GROUP as NODE_GROUP
from vkgateway_platform.embedded.record import PlatformRecord

if TYPE_CHECKING:
    from aiohttp import ClientSession

HealthCheck = Callable[[], Awaitable[str]]

PATIENCE: Final = 5.0
"""Seconds in which a process must answer."""
_API_SERVER: Final = f"{compute.GROUP}/apiserver"
_KUBELET: Final = f"{NODE_GROUP}/kubelet"
_LEASES_OF_NODES: Final = "kube-node-lease"
_REAL_NODE: Final = "real-0"
_LEASE_AGE_MAX: Final = 2.0 * kwok.LEASE_SECONDS
"""Seconds; a restarted KWOK waits until the Leases of its predecessor expire."""


async def find_problems(
    states: Iterable[ProcessState], *, paths: PlatformPaths, record: PlatformRecord, tenants: Mapping[str, str]
) -> dict[str, str]:
    """Return the problem of each running process that does not answer as it should.

    `tenants` maps tenants to the URLs of their API servers.
    """
    import aiohttp

    running = {state.name: state.pid for state in states if state.pid is not None}
    async with aiohttp.ClientSession(timeout=aiohttp.ClientTimeout(total=PATIENCE)) as session:
        questions = _HealthChecks(session, paths, record).checks_by_process(tenants)
        checked = [name for name in questions if name in running]
        answers = await asyncio.gather(*(questions[name]() for name in checked))
    found = {name: answer for name, answer in zip(checked, answers, strict=True) if answer}
    stopped = {name: "it is stopped by a signal" for name, pid in running.items() if _is_stopped(pid)}
    return found | stopped


class _HealthChecks:
    """Health check for each process that has one; a check returns the problem, "" if there is none."""

    def __init__(self, session: ClientSession, paths: PlatformPaths, record: PlatformRecord) -> None:
        self._session = session
        self._paths = paths
        self._record = record

    def checks_by_process(self, tenants: Mapping[str, str]) -> dict[str, HealthCheck]:
        """Return every health check by process."""
        ports, compute_files = self._record.ports, self._paths.compute_dir
        own = partial(
            self._check_url, authority=self._paths.pki_dir / f"{ETCD_CA}.crt", identity=self._paths.pki_dir / ETCD_ROOT
        )
        kubelet = partial(
            self._check_url,
            authority=hollow_kubelet.authority_path(self._paths),
            identity=compute_files / "kubelet-client",
        )
        questions: dict[str, HealthCheck] = {
            etcd.NAME: partial(own, f"{etcd.client_url(ports['etcd'])}/readyz"),
            gateway_process.NAME: partial(self._check_url, f"http://127.0.0.1:{ports['gateway-health']}/readyz"),
            hollow_kubelet.NAME: partial(kubelet, f"https://{hollow_kubelet.HOST}:{ports['hollow-kubelet']}/healthz"),
            _API_SERVER: partial(self._check_api, "/readyz"),
            _KUBELET: partial(self._check_api, f"/api/v1/nodes/{_REAL_NODE}/proxy/healthz"),
            kwok.NAME: self._check_leases,
        }
        for name, url in tenants.items():
            questions[f"tenant/{name}/apiserver"] = partial(self._check_url, f"{url}/readyz", is_known=False)
        return questions

    async def _check_url(
        self, url: str, *, authority: Path | None = None, identity: Path | None = None, is_known: bool = True
    ) -> str:
        """Check that a URL answers 200; a server that does not know the caller must only answer."""
        import aiohttp

        try:
            async with self._session.get(url, ssl=_ssl_context(authority, identity)) as answer:
                text = " ".join((await answer.text()).split())
        except TimeoutError:
            return f"no answer within {PATIENCE:.0f} s"
        except (aiohttp.ClientError, OSError) as error:
            return f"no answer: {error}"
        return f"{answer.status}: {text[:200]}" if is_known and answer.status != 200 else ""

    async def _check_api(self, path: str) -> str:
        try:
            async with Client.from_kubeconfig(self._paths.admin_kubeconfig, name="the compute cluster") as client:
                await client.request("GET", path, timeout=PATIENCE)
        except (errors.ApiError, InputError) as error:
            return str(error)
        return ""

    async def _check_leases(self) -> str:
        """Check that KWOK renews the Leases of its nodes; it serves no endpoint."""
        if not sum(self._record.hollow_nodes.values()):
            return ""
        try:
            async with Client.from_kubeconfig(self._paths.admin_kubeconfig, name="the compute cluster") as client:
                page = await client.list_all(LEASES, namespace=_LEASES_OF_NODES, timeout=PATIENCE)
        except (errors.ApiError, InputError):
            return ""  # a problem of the API server
        leases = [msgspec.json.decode(item, type=Lease) for item in page.items]
        renewed = [lease.spec.renew_time for lease in leases if lease.metadata.name != _REAL_NODE]
        newest = max((times.parse_time(text) for text in renewed if text), default=None)
        age = None if newest is None else (datetime.datetime.now(datetime.UTC) - newest).total_seconds()
        if age is not None and age <= _LEASE_AGE_MAX:
            return ""
        return "it does not renew the nodes' Leases" + (
            "" if age is None else f"; the last renewal was {age:.0f} s ago"
        )


def _ssl_context(authority: Path | None, identity: Path | None) -> ssl.SSLContext:
    """Return the TLS settings of a request. Without a CA the server is not verified; the request carries no secret, and
    its answer is not trusted.
    """
    context = ssl.create_default_context(cafile=authority)
    if authority is None:
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    if identity is not None:
        context.load_cert_chain(identity.with_suffix(".crt"), identity.with_suffix(".key"))
    return context


def _is_stopped(pid: int) -> bool:
    try:
        return psutil.Process(pid).status() == psutil.STATUS_STOPPED
    except psutil.Error:
        return False
