"""Certificates of a running platform are renewed automatically, long before they expire."""

from __future__ import annotations

import base64
import datetime
import subprocess
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from vkgateway.api.errors import ConflictError
from vkgateway.planes.pki import AUTHORITY_DAYS, Authority, cert_expiry
from vkgateway.planes.supervisor.client import SupervisorUnavailable
from vkgateway.planes.supervisor.spec import ProcessSpec, ProcessState
from vkgateway_platform.embedded import compute, real_node_steps
from vkgateway_platform.embedded import record as records
from vkgateway_platform.embedded.hollow import kwok
from vkgateway_platform.embedded.hollow.kubelet import process as hollow_kubelet
from vkgateway_platform.embedded.lock import work_lock
from vkgateway_platform.embedded.options import PORTS
from vkgateway_platform.embedded.paths import PlatformPaths
from vkgateway_platform.embedded.pki import PlatformPki, ensure_pki
from vkgateway_platform.embedded.provisioner import process as provisioner
from vkgateway_platform.embedded.record import PlatformRecord
from vkgateway_platform.embedded.renewal import __main__ as daily
from vkgateway_platform.embedded.renewal import process as renewal
from vkgateway_platform.embedded.renewal.certificates import renew_certificates
from vkgateway_platform.embedded.status import _NEEDED, _certificate_problems

NOW = datetime.datetime.now(datetime.UTC)
LATER = NOW + datetime.timedelta(days=300)
"""Set again for each test: in a long run, certificates of the real clock would not be valid yet."""
RECORD = PlatformRecord(address="10.213.4.1", ports=dict(PORTS), real_node_why_not="not wanted")


@pytest.fixture(autouse=True)
def moment(monkeypatch: pytest.MonkeyPatch) -> None:
    now = datetime.datetime.now(datetime.UTC)
    monkeypatch.setitem(globals(), "NOW", now)
    monkeypatch.setitem(globals(), "LATER", now + datetime.timedelta(days=300))


class Processes:
    """A supervisor of KWOK and the hollow kubelet."""

    def __init__(self, *runs: ProcessSpec) -> None:
        self.specs = {spec.name: spec for spec in runs}
        self.asked = 0
        self.away = False

    async def list_processes(self, prefix: str) -> list[ProcessState]:
        self.asked += 1
        if self.away:
            raise SupervisorUnavailable("nobody answers")
        assert prefix == compute.GROUP
        state = partial(ProcessState, state="running", pid=1, restarts=0, since=0, reason="", log="")
        return [state(name=spec.name, argv=spec.argv) for spec in self.specs.values()]

    async def ensure_process(self, spec: ProcessSpec) -> None:
        self.specs[spec.name] = spec


@pytest.fixture
def paths(tmp_path: Path) -> PlatformPaths:
    """Return the files of a platform that has just started."""
    paths = PlatformPaths(tmp_path)
    records.save_record(paths.record_path, RECORD)
    pki = ensure_pki(paths, now=NOW)
    compute.write_plane(paths, record=RECORD, pki=pki, now=NOW)
    provisioner.write_kubeconfig(paths, plane=compute.plane_spec(RECORD), pki=pki)
    return paths


@pytest.fixture
def supervisor(paths: PlatformPaths) -> Any:
    return Processes(*restarted(paths))


def restarted(paths: PlatformPaths) -> list[ProcessSpec]:
    """Return the specs of the processes that read their certificates only at start, from the files on disk."""
    return [
        kwok.prepare_process(paths, port=10247, program=Path("/bin/kwok")),
        hollow_kubelet.process_spec(paths, port=10247),
    ]


def content(paths: PlatformPaths) -> dict[str, bytes]:
    files = (path for path in sorted(paths.data_dir.rglob("*")) if path.is_file() and path != paths.lock_path)
    return {str(path.relative_to(paths.data_dir)): path.read_bytes() for path in files}


def certificate_in(kubeconfig: Path) -> bytes:
    user = yaml.safe_load(kubeconfig.read_text())["users"][0]["user"]
    return base64.b64decode(user["client-certificate-data"])


async def test_valid_certificates_are_not_renewed(paths: PlatformPaths, supervisor: Any) -> None:
    before = content(paths)
    assert await renew_certificates(paths.data_dir, supervisor=supervisor, now=NOW) == []
    assert content(paths) == before
    assert not supervisor.asked


async def test_expiring_certificates_are_renewed_and_some_processes_restarted(
    paths: PlatformPaths, supervisor: Any
) -> None:
    before, running = content(paths), dict(supervisor.specs)
    renewed = await renew_certificates(paths.data_dir, supervisor=supervisor, now=LATER)
    changed = {name for name, data in content(paths).items() if before.get(name) != data and "-before" not in name}
    assert {"pki/etcd.crt", "pki/etcd-root.crt", "compute/apiserver.crt", "compute/etcd.crt", "hollow/kwok.crt"} <= set(
        renewed
    )
    assert {name for name in changed if name.endswith(".crt")} == set(renewed), "nothing is told that was not done"
    assert not [name for name in changed if "ca." in name or name.endswith(("sa.key", "sa.pub", ".json"))]

    assert certificate_in(paths.gateway.kubeconfig) == (paths.pki_dir / "gateway.crt").read_bytes()
    assert certificate_in(paths.provisioner_kubeconfig) == (paths.pki_dir / "provisioner.crt").read_bytes()
    assert certificate_in(paths.admin_kubeconfig) == (paths.compute_credentials / "admin.crt").read_bytes()
    for name, spec in supervisor.specs.items():
        assert spec.argv == running[name].argv
        assert spec != running[name], "it reads its certificates once"
    assert list(supervisor.specs.values()) == restarted(paths), "the next `up` leaves them alone"


async def test_certificates_of_the_real_node_are_renewed(paths: PlatformPaths, supervisor: Any) -> None:
    records.save_record(paths.record_path, msgspec.structs.replace(RECORD, real_node_why_not=None))
    pki: PlatformPki = ensure_pki(paths, now=NOW)
    real_node_steps.renew_node(paths.node_dir, number=0, api_server="https://10.213.4.1:6443", authority=pki.compute.ca)
    assert not paths.node_dir.exists(), "a node that does not stand is not made"
    old = pki.compute.ca.issue("system:node:real-0", client=True, now=NOW - datetime.timedelta(days=300))
    old.write(paths.node_dir / "pki", "kubelet")
    assert await renew_certificates(paths.data_dir, supervisor=supervisor, now=NOW) == ["node/pki/kubelet.crt"]
    assert cert_expiry((paths.node_dir / "pki/kubelet.crt").read_bytes()) > LATER
    assert "https://10.213.4.1:6443" in (paths.node_dir / "pki/kubelet.kubeconfig").read_text()


async def test_nothing_is_renewed_while_up_runs(paths: PlatformPaths, supervisor: Any) -> None:
    before = content(paths)
    with work_lock(paths.lock_path, command="up"), pytest.raises(ConflictError, match="by vkgateway up"):
        await renew_certificates(paths.data_dir, supervisor=supervisor, now=LATER)
    assert content(paths) == before


async def test_nothing_is_renewed_without_a_supervisor(paths: PlatformPaths, supervisor: Any) -> None:
    before = content(paths)
    supervisor.away = True
    with pytest.raises(SupervisorUnavailable):
        await renew_certificates(paths.data_dir, supervisor=supervisor, now=LATER)
    assert content(paths) == before


def test_renewal_runs_daily_and_sooner_after_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    pauses: list[float] = []
    looks: list[list[str]] = []

    def sleep(seconds: float) -> None:
        pauses.append(seconds)
        if len(pauses) == 4:
            raise StopIteration

    def look(command: list[str], **_: object) -> subprocess.CompletedProcess[str]:
        looks.append(command)
        return subprocess.CompletedProcess(command, returncode=len(looks) == 2)

    monkeypatch.setattr(time, "sleep", sleep)
    monkeypatch.setattr(subprocess, "run", look)
    with pytest.raises(StopIteration):
        daily.main("/data")
    assert pauses == [3600, 86400, 3600, 86400]
    assert looks == [[sys.executable, "-m", "vkgateway_platform.embedded.renewal.once", "/data"]] * 3


def test_renewal_program_prints_what_it_did(paths: PlatformPaths) -> None:
    def run_check() -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "vkgateway_platform.embedded.renewal.once", str(paths.data_dir)]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    assert (run_check().returncode, run_check().stderr) == (0, "")
    authority = ensure_pki(paths, now=NOW).etcd
    authority.issue("root", client=True, now=NOW - datetime.timedelta(days=300)).write(paths.pki_dir, "etcd-root")
    completed = run_check()
    assert completed.returncode == 1
    assert "error: certificates were not looked at: no supervisor answers at" in completed.stderr


def test_renewal_is_a_process_of_the_platform(paths: PlatformPaths) -> None:
    spec = renewal.process_spec(paths)
    assert spec.name in _NEEDED
    assert spec.argv[1:] == ("-m", "vkgateway_platform.embedded.renewal", str(paths.data_dir))


def test_expiring_ca_is_a_problem_two_years_before(paths: PlatformPaths) -> None:
    ten_years = datetime.timedelta(days=AUTHORITY_DAYS)
    old = Authority.create("old", now=NOW - ten_years + datetime.timedelta(days=700))
    assert _certificate_problems(paths, now=NOW) == []
    old.write(paths.pki_dir, "etcd-ca")
    (problem,) = _certificate_problems(paths, now=NOW)
    end = NOW + datetime.timedelta(days=700)
    assert problem == f"the authority pki/etcd-ca.crt ends on {end:%Y-%m-%d}, and the platform with it"
