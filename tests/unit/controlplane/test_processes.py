"""Files, command lines and ports of a control plane's processes."""

from __future__ import annotations

import asyncio
import dataclasses
import datetime
import socket
import ssl
import threading
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.unit.controlplane.fakes import FakePrograms, FakeSupervisor
from vkgateway.controlplane.components import PROGRAMS, component_spec
from vkgateway.controlplane.credentials import Credentials
from vkgateway.controlplane.drivers.process import ProcessDriver
from vkgateway.controlplane.pki import Authority, alternative_names, common_name
from vkgateway.controlplane.plane import (
    COMPONENTS,
    ComponentName,
    ControlPlaneSpec,
    Tuning,
    compute_plane_spec,
    tenant_plane_spec,
)
from vkgateway.controlplane.plane_files import Authorities, PlaneFiles, write_plane_files
from vkgateway.controlplane.ports import choose_port, is_port_free
from vkgateway.kubelet import identity
from vkgateway.model.api import PodSecurity
from vkgateway.model.errors import ConflictError, InputError, UnavailableError
from vkgateway.programs.supervisor.spec import ProcessSpec

NOW = datetime.datetime.now(datetime.UTC)
ETCD = ("https://10.0.0.1:2379",)
AUTHORITIES = Authorities(etcd=Authority.create("etcd"), kubelet=Authority.create("kubelet"))
ALPHA = Credentials.create("alpha")
BIN = {program: Path("/bin") / program for program in PROGRAMS.values()}


def plane(
    *, port: int = 20001, tuning: dict[str, str | None] | None = None, names: tuple[str, ...] = ()
) -> ControlPlaneSpec:
    return tenant_plane_spec(
        "alpha",
        address="10.0.0.1",
        port=port,
        etcd_endpoints=ETCD,
        subject_alt_names=names,
        tuning={"apiserver": Tuning(flags=tuning)} if tuning else {},
    )


def write(directory: Path, shape: ControlPlaneSpec, *, now: datetime.datetime = NOW) -> PlaneFiles:
    return write_plane_files(directory, plane=shape, credentials=ALPHA, authorities=AUTHORITIES, now=now)


def contents(directory: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in directory.iterdir()}


def test_each_certificate_is_signed_by_whom_its_reader_trusts(tmp_path: Path) -> None:
    files = write(tmp_path, plane(names=("api.example.org", "192.0.2.7")))
    signers = {
        "apiserver": (ALPHA.ca, "kube-apiserver"),
        "controller-manager": (ALPHA.ca, "system:kube-controller-manager"),
        "scheduler": (ALPHA.ca, "system:kube-scheduler"),
        "front-proxy": (ALPHA.front_proxy_ca, "front-proxy-client"),
        "etcd": (AUTHORITIES.etcd, "tenant-alpha"),
        "kubelet-client": (AUTHORITIES.kubelet, "vkgateway:tenant:alpha"),
    }
    for name, (authority, user) in signers.items():
        certificate = files.cert_path(name).read_bytes()
        assert authority.has_signed(certificate), name
        assert common_name(certificate) == user
    names = alternative_names(files.cert_path("apiserver").read_bytes())
    assert {"10.0.0.1", "10.96.0.1", "kubernetes.default.svc", "api.example.org", "192.0.2.7"} <= names


def test_the_platforms_own_keys_never_reach_a_tenants_folder(tmp_path: Path) -> None:
    write(tmp_path, plane())
    written = b"".join(contents(tmp_path).values())
    for authority in (AUTHORITIES.etcd, AUTHORITIES.kubelet):
        assert authority.key_pem not in written


def test_private_files_are_private(tmp_path: Path) -> None:
    write(tmp_path, plane())
    for file in tmp_path.iterdir():
        if file.suffix in (".key", ".kubeconfig"):
            assert file.stat().st_mode & 0o077 == 0, file.name


def test_written_again_nothing_changes(tmp_path: Path) -> None:
    write(tmp_path, plane())
    before = contents(tmp_path)
    write(tmp_path, plane())
    assert contents(tmp_path) == before


@pytest.mark.parametrize("broken", ["apiserver.crt", "apiserver.key", "etcd.key", "scheduler.kubeconfig", "sa.pub"])
@pytest.mark.parametrize("how", ["gone", "empty", "anothers"])
def test_a_file_that_was_lost_or_broken_is_made_again(tmp_path: Path, broken: str, how: str) -> None:
    write(tmp_path / "ours", plane())
    file = tmp_path / "ours" / broken
    if how == "gone":
        file.unlink()
    elif how == "empty":
        file.write_bytes(b"")
    else:
        other = Authority.create("other").issue("kube-apiserver", server=True)
        file.write_bytes(other.cert_pem if broken.endswith(".crt") else other.key_pem)
    files = write(tmp_path / "ours", plane())
    assert ALPHA.ca.has_signed(files.cert_path("apiserver").read_bytes())
    before = contents(tmp_path / "ours")
    write(tmp_path / "ours", plane())
    assert contents(tmp_path / "ours") == before


def test_certificates_near_their_end_are_renewed_and_authorities_are_not(tmp_path: Path) -> None:
    write(tmp_path, plane())
    before = contents(tmp_path)
    write(tmp_path, plane(), now=NOW + datetime.timedelta(days=300))
    after = contents(tmp_path)
    assert after["apiserver.crt"] != before["apiserver.crt"]
    assert after["etcd.crt"] != before["etcd.crt"]
    assert {name: after[name] for name in ("ca.crt", "sa.key", "etcd-ca.crt")} == {
        name: before[name] for name in ("ca.crt", "sa.key", "etcd-ca.crt")
    }


def test_a_renewed_kubelet_client_may_be_the_old_one_for_a_while(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    old = files.cert_path("kubelet-client").read_text()
    assert files.kubelet_clients() == {identity.certificate_fingerprint(ssl.PEM_cert_to_DER_cert(old))}
    write(tmp_path, plane(), now=NOW + datetime.timedelta(days=300))
    new = files.cert_path("kubelet-client").read_text()
    assert new != old
    assert files.kubelet_clients() == {
        identity.certificate_fingerprint(ssl.PEM_cert_to_DER_cert(pem)) for pem in (old, new)
    }
    assert not (tmp_path / "kubelet-client-before.key").exists()


@pytest.mark.parametrize("broken", ["kubelet-client.crt", "kubelet-client-before.crt"])
def test_a_broken_kubelet_client_counts_for_nothing(tmp_path: Path, broken: str) -> None:
    write(tmp_path, plane())
    files = write(tmp_path, plane(), now=NOW + datetime.timedelta(days=300))
    both = files.kubelet_clients()
    (tmp_path / broken).write_bytes(b"")
    assert len(both) == 2
    assert len(files.kubelet_clients()) == 1
    assert files.kubelet_clients() < both


def test_a_strangers_kubelet_client_is_not_kept(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    files.cert_path("kubelet-client").write_bytes(ALPHA.ca.issue("vkgateway:tenant:alpha", client=True).cert_pem)
    write(tmp_path, plane())
    assert len(files.kubelet_clients()) == 1


def test_only_the_compute_cluster_evicts_by_taints(tmp_path: Path) -> None:
    """A compute cluster that is away makes virtual nodes NotReady, and must delete nothing."""
    shapes = {
        "tenant": plane(),
        "compute": compute_plane_spec(address="10.0.0.1", port=6443, etcd_endpoints=("https://127.0.0.1:2379",)),
    }
    off = {}
    for name, shape in shapes.items():
        files = write(tmp_path / name, shape)
        argv = component_spec("controller-manager", plane=shape, files=files, programs=BIN).argv
        (controllers,) = [flag for flag in argv if flag.startswith("--controllers=")]
        off[name] = "-taint-eviction-controller" in controllers.split(",")
    assert off == {"tenant": True, "compute": False}


def test_components_stop_soon_and_api_servers_do_not_wait_for_watches(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    specs = {name: component_spec(name, plane=plane(), files=files, programs=BIN) for name in COMPONENTS}
    assert all(spec.stop_timeout <= 3 for spec in specs.values())
    assert "--shutdown-watch-termination-grace-period=1s" in specs["apiserver"].argv


def test_timers_are_late_as_is_usual_unless_a_template_says_otherwise(tmp_path: Path) -> None:
    usual = {
        name: component_spec(name, plane=plane(), files=write(tmp_path, plane()), programs=BIN) for name in COMPONENTS
    }
    shape = dataclasses.replace(
        plane(), tuning={"apiserver": Tuning(timer_slack=0.005), "controller-manager": Tuning(timer_slack=0)}
    )
    said = {name: component_spec(name, plane=shape, files=write(tmp_path, shape), programs=BIN) for name in COMPONENTS}
    assert [usual[name].timer_slack for name in COMPONENTS] == [0, 0.02, 0]
    assert all(usual[name].batch for name in COMPONENTS)
    assert [said[name].timer_slack for name in COMPONENTS] == [0.005, 0, 0]


def test_kubeconfigs_lead_to_files_that_exist(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    document = yaml.safe_load(files.kubeconfig_path("scheduler").read_text())
    user, cluster = document["users"][0]["user"], document["clusters"][0]["cluster"]
    for path in (user["client-certificate"], user["client-key"], cluster["certificate-authority"]):
        assert Path(path).exists()
    assert cluster["server"] == "https://10.0.0.1:20001"


def older_and_newer(version: str) -> ControlPlaneSpec:
    """A tenant's control plane of that version; the gateway's endpoint is there for both."""
    return tenant_plane_spec(
        "alpha",
        address="10.0.0.1",
        port=20001,
        etcd_endpoints=ETCD,
        kubernetes_version=version,
        webhooks_at="10.0.0.1:10352",
    )


@pytest.mark.parametrize(
    ("version", "gates", "beta", "webhook"),
    [
        ("1.30.14", False, False, True),
        ("1.33.13", False, False, True),
        ("1.34.4", True, True, False),
        ("1.35.4", True, True, False),
        ("1.36.3", False, False, False),
    ],
)
def test_an_api_server_gates_pods_itself_or_may_ask_the_gateway(
    tmp_path: Path, version: str, gates: bool, beta: bool, webhook: bool
) -> None:
    shape = older_and_newer(version)
    argv = component_spec("apiserver", plane=shape, files=write(tmp_path, shape), programs=BIN).argv
    assert ("MutatingAdmissionPolicy=true" in next(flag for flag in argv if "feature-gates" in flag)) == gates
    assert ("--runtime-config=admissionregistration.k8s.io/v1beta1=true" in argv) == beta
    assert (f"--admission-control-config-file={tmp_path / 'admission.yaml'}" in argv) == webhook
    assert (tmp_path / "admission.yaml").exists() == webhook


def test_to_the_gateways_webhook_an_api_server_is_who_it_is_to_kubelets(tmp_path: Path) -> None:
    files = write(tmp_path, older_and_newer("1.33.13"))
    (plugin,) = yaml.safe_load(files.admission_path.read_text())["plugins"]
    (user,) = yaml.safe_load(Path(plugin["configuration"]["kubeConfigFile"]).read_text())["users"]
    certificate = Path(user["user"]["client-certificate"])
    assert plugin["name"] == "MutatingAdmissionWebhook"
    assert user["name"] == "10.0.0.1:10352"
    assert common_name(certificate.read_bytes()) == "vkgateway:tenant:alpha"
    assert Path(user["user"]["client-key"]).exists()


@pytest.mark.parametrize("version", ["1.30.14", "1.36.3"])
def test_an_api_server_holds_namespaces_without_labels_to_the_level(tmp_path: Path, version: str) -> None:
    shape = dataclasses.replace(older_and_newer(version), pod_security="restricted")
    files = write(tmp_path, shape)
    plugins = {one["name"]: one["configuration"] for one in yaml.safe_load(files.admission_path.read_text())["plugins"]}
    defaults = plugins["PodSecurity"]["defaults"]
    assert (defaults["enforce"], defaults["enforce-version"], defaults["warn"]) == (
        "restricted",
        "latest",
        "restricted",
    )
    assert ("MutatingAdmissionWebhook" in plugins) == (version == "1.30.14")
    argv = component_spec("apiserver", plane=shape, files=files, programs=BIN).argv
    assert f"--admission-control-config-file={files.admission_path}" in argv


def test_another_level_restarts_the_api_server_alone(tmp_path: Path) -> None:
    def specs(level: PodSecurity) -> dict[str, ProcessSpec]:
        shape = dataclasses.replace(plane(), pod_security=level)
        files = write(tmp_path, shape)
        return {name: component_spec(name, plane=shape, files=files, programs=BIN) for name in PROGRAMS}

    before, again, after = specs("baseline"), specs("baseline"), specs("restricted")
    assert before == again
    assert {name for name in PROGRAMS if before[name] != after[name]} == {"apiserver"}


def test_a_template_changes_flags_and_takes_them_away(tmp_path: Path) -> None:
    shape = plane(tuning={"v": "4", "profiling": None, "event-ttl": "10m"})
    spec = component_spec("apiserver", plane=shape, files=write(tmp_path, shape), programs=BIN)
    assert {"--v=4", "--event-ttl=10m"} <= set(spec.argv)
    assert not [argument for argument in spec.argv if argument.startswith("--profiling")]


def test_a_templates_gates_and_versions_go_beside_those_that_its_release_needs(tmp_path: Path) -> None:
    tuning: dict[str, str | None] = {
        "feature-gates": "GenericWorkload=true, WatchList=true",
        "runtime-config": "scheduling.k8s.io/v1alpha1=true",
    }
    shape = dataclasses.replace(older_and_newer("1.35.4"), tuning={"apiserver": Tuning(flags=tuning)})
    argv = component_spec("apiserver", plane=shape, files=write(tmp_path, shape), programs=BIN).argv
    gates = settings("feature-gates", argv)
    assert gates["WatchList"] == "true"
    assert gates["SizeBasedListCostEstimate"] == "false"
    assert gates["MutatingAdmissionPolicy"] == "true"
    assert gates["GenericWorkload"] == "true"
    versions = "admissionregistration.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha1=true"
    assert f"--runtime-config={versions}" in argv


@pytest.mark.parametrize(
    ("version", "off"),
    [
        ("1.30.14", {"WatchList", "APIServerIdentity"}),
        ("1.33.13", {"WatchList", "APIServerIdentity"}),
        (
            "1.35.4",
            {
                "WatchList",
                "APIServerIdentity",
                "SizeBasedListCostEstimate",
                "ListFromCacheSnapshot",
                "DetectCacheInconsistency",
            },
        ),
        (
            "1.36.3",
            {
                "WatchList",
                "APIServerIdentity",
                "SizeBasedListCostEstimate",
                "ListFromCacheSnapshot",
                "DetectCacheInconsistency",
                "UnknownVersionInteroperabilityProxy",
            },
        ),
    ],
)
def test_what_a_release_has_switched_on_and_a_tenant_has_no_use_for_is_off(
    tmp_path: Path, version: str, off: set[str]
) -> None:
    shape = older_and_newer(version)
    argv = component_spec("apiserver", plane=shape, files=write(tmp_path, shape), programs=BIN).argv
    assert {gate for gate, value in settings("feature-gates", argv).items() if value == "false"} == off


def settings(flag: str, argv: Sequence[str]) -> dict[str, str]:
    """The entries of a flag that holds a list of names, each with a value."""
    (text,) = (argument.partition("=")[2] for argument in argv if argument.startswith(f"--{flag}="))
    return dict(entry.split("=", 1) for entry in text.split(","))


def test_a_template_sets_gates_where_none_are_ours_and_takes_them_all_away(tmp_path: Path) -> None:
    wanted = {"feature-gates": None}, {"feature-gates": "A=true"}
    tuning: dict[ComponentName, Tuning] = {
        "apiserver": Tuning(flags=wanted[0]),
        "controller-manager": Tuning(flags=wanted[1]),
    }
    shape = dataclasses.replace(plane(), tuning=tuning)
    files = write(tmp_path, shape)
    found = [component_spec(name, plane=shape, files=files, programs=BIN).argv for name in tuning]
    assert [[flag for flag in argv if "feature-gates" in flag] for argv in found] == [[], ["--feature-gates=A=true"]]


def test_no_flag_is_given_twice_and_secrets_are_given_as_files(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    for name in COMPONENTS:
        spec = component_spec(name, plane=plane(), files=files, programs=BIN)
        flags = [argument.partition("=")[0] for argument in spec.argv[1:]]
        assert len(flags) == len(set(flags))
        assert "PRIVATE" not in " ".join(spec.argv)


def test_new_authorities_start_the_processes_anew_and_new_certificates_do_not(tmp_path: Path) -> None:
    files = write(tmp_path, plane())
    first = component_spec("apiserver", plane=plane(), files=files, programs=BIN)
    write(tmp_path, plane(), now=NOW + datetime.timedelta(days=300))
    assert component_spec("apiserver", plane=plane(), files=files, programs=BIN) == first
    others = Authorities(etcd=AUTHORITIES.etcd, kubelet=Authority.create("kubelet"))
    write_plane_files(tmp_path, plane=plane(), credentials=ALPHA, authorities=others, now=NOW)
    assert component_spec("apiserver", plane=plane(), files=files, programs=BIN) != first


def test_the_compute_cluster_has_a_prefix_and_user_of_its_own(tmp_path: Path) -> None:
    shape = compute_plane_spec(address="10.0.0.1", port=6443, etcd_endpoints=ETCD)
    spec = component_spec("apiserver", plane=shape, files=write(tmp_path, shape), programs=BIN)
    assert spec.name == "compute/apiserver"
    assert "--etcd-prefix=/compute" in spec.argv
    assert common_name((tmp_path / "etcd.crt").read_bytes()) == "compute"


class Driver:
    """A process driver on stand-ins, with a port that others may hold."""

    def __init__(self, data_dir: Path) -> None:
        self.supervisor = FakeSupervisor()
        self.programs = FakePrograms()
        self.free = True
        self.data_dir = data_dir
        self.driver = ProcessDriver(
            data_dir=data_dir,
            supervisor=self.supervisor,
            programs=self.programs,
            authorities=AUTHORITIES,
            can_bind=lambda address, port: self.free,
        )

    async def start(self, shape: ControlPlaneSpec) -> None:
        await self.driver.start(shape, credentials=ALPHA, version="1.36.3")


async def test_three_processes_run_and_clients_stop_before_the_server(tmp_path: Path) -> None:
    world = Driver(tmp_path)
    await world.start(plane())
    assert world.supervisor.starts == [f"tenant/alpha/{name}" for name in COMPONENTS]
    ranks = {name: world.supervisor.specs[f"tenant/alpha/{name}"].stop_rank for name in COMPONENTS}
    assert ranks["apiserver"] < min(ranks["scheduler"], ranks["controller-manager"])
    assert world.programs.versions == ["1.36.3"]


async def test_started_again_nothing_restarts_though_our_server_holds_the_port(tmp_path: Path) -> None:
    world = Driver(tmp_path)
    await world.start(plane())
    world.free = False
    await world.start(plane())
    assert len(world.supervisor.starts) == 3


async def test_a_port_held_by_a_stranger_is_told_and_nothing_starts(tmp_path: Path) -> None:
    world = Driver(tmp_path)
    world.free = False
    with pytest.raises(ConflictError, match=r"port 20001 at 10\.0\.0\.1.*'alpha'"):
        await world.start(plane())
    assert world.supervisor.specs == {}
    assert not (tmp_path / "tenants").exists()


async def test_trouble_names_the_process_and_why(tmp_path: Path) -> None:
    world = Driver(tmp_path)
    await world.start(plane())
    assert await world.driver.failure_reason(plane()) == ""
    world.supervisor.failing["tenant/alpha/apiserver"] = "exit 1: no such flag"
    assert "tenant/alpha/apiserver" in await world.driver.failure_reason(plane())
    assert "no such flag" in await world.driver.failure_reason(plane())


@pytest.mark.parametrize(("restarts", "told"), [(2, False), (3, True)])
async def test_a_client_that_ends_before_the_server_is_there_is_no_trouble_yet(
    tmp_path: Path, restarts: int, told: bool
) -> None:
    world = Driver(tmp_path)
    await world.start(plane())
    world.supervisor.failing["tenant/alpha/scheduler"] = "connection refused"
    world.supervisor.restarts = restarts
    assert bool(await world.driver.failure_reason(plane())) == told


async def test_a_folder_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "tenants").write_text("a file where a folder should be")
    world = Driver(tmp_path)
    with pytest.raises(UnavailableError, match=r"'alpha' cannot be written to .*tenants/alpha"):
        await world.start(plane())
    assert world.supervisor.specs == {}


async def test_removal_takes_processes_files_and_logs_of_one_tenant(tmp_path: Path) -> None:
    world = Driver(tmp_path)
    await world.start(plane())
    logs = tmp_path / "logs"
    logs.mkdir()
    for name in ("tenant.alpha.apiserver.log", "tenant.alpha.apiserver.log.1", "tenant.alpha-b.apiserver.log"):
        (logs / name).touch()
    await world.driver.remove("alpha")
    await world.driver.remove("alpha")
    assert world.supervisor.specs == {}
    assert not (tmp_path / "tenants" / "alpha").exists()
    assert [file.name for file in logs.iterdir()] == ["tenant.alpha-b.apiserver.log"]


async def test_files_that_are_still_being_written_are_removed_with_the_rest(tmp_path: Path) -> None:
    """A tenant that is deleted while it is being made: the thread that writes for it cannot be cancelled."""
    begun, held = threading.Event(), threading.Event()

    def now() -> datetime.datetime:
        begun.set()
        assert held.wait(10)
        return NOW

    world = Driver(tmp_path)
    world.driver._now = now
    starting = asyncio.create_task(world.start(plane()))
    assert await asyncio.to_thread(begun.wait, 10)
    starting.cancel()
    with pytest.raises(asyncio.CancelledError):
        await starting
    removing = asyncio.create_task(world.driver.remove("alpha"))
    await asyncio.sleep(0.05)
    held.set()
    await removing
    await asyncio.sleep(0.2)
    assert not (tmp_path / "tenants" / "alpha").exists()


def always(address: str, port: int) -> bool:
    return True


def test_a_port_is_chosen_that_nobody_has() -> None:
    given = dict.fromkeys(range(20000, 20005), "other")
    assert choose_port("a", wanted=0, given=given, address="x", ports=range(20000, 20006), can_bind=always) == 20005


def test_a_port_on_which_somebody_listens_is_passed_over() -> None:
    ports = range(20000, 20003)
    first = choose_port("a", wanted=0, given={}, address="x", ports=ports, can_bind=always)
    second = choose_port(
        "a", wanted=0, given={}, address="x", ports=ports, can_bind=lambda address, port: port != first
    )
    assert first != second


def test_no_port_left_is_told() -> None:
    with pytest.raises(UnavailableError, match="no port from 20000 to 20001 is free"):
        choose_port(
            "a", wanted=0, given={}, address="x", ports=range(20000, 20002), can_bind=lambda address, port: False
        )


def test_bindable_tells_a_taken_port_from_a_free_one_and_from_a_strange_address() -> None:
    address = "127.83.0.2"  # where nobody else takes the port in between
    with socket.socket() as server:
        server.bind((address, 0))
        server.listen()
        port = server.getsockname()[1]
        assert not is_port_free(address, port)
    assert is_port_free(address, port)
    with pytest.raises(InputError, match=r"192\.0\.2\.1"):
        is_port_free("192.0.2.1", port)
