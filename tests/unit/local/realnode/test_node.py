"""The node as a whole: certificates, processes, order of work, repeated and interrupted calls."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from tests.unit.local.realnode.test_options import OPTIONS
from vkgateway.api.errors import UnavailableError
from vkgateway.planes.pki import Authority, alternative_names, common_name
from vkgateway_platform.embedded.realnode import config_files, images
from vkgateway_platform.embedded.realnode import node as node_module
from vkgateway_platform.embedded.realnode.busybox import Busybox
from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.containerd import Containerd
from vkgateway_platform.embedded.realnode.host import HostChanges, ToolError
from vkgateway_platform.embedded.realnode.mounts import bind_mounts
from vkgateway_platform.embedded.realnode.namespaces import NodeNamespaces
from vkgateway_platform.embedded.realnode.node import RealNode
from vkgateway_platform.embedded.realnode.options import RealNodeOptions

STEPS = ("cgroups.create", "changes.apply", "namespaces.create", "masquerade")


class Trace:
    """Records the calls in order; a step can fail once on demand."""

    def __init__(self) -> None:
        self.steps: list[str] = []
        self.fails_at = ""

    def step(self, name: str) -> Callable[..., None]:
        def record_call(*_: object, **__: object) -> None:
            if name == self.fails_at:
                self.fails_at = ""
                raise ToolError(f"{name} failed")
            self.steps.append(name)

        return record_call


@pytest.fixture
def trace(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Trace:
    trace = Trace()
    busybox = Busybox(program=b"busybox", applets=("sh", "date"))
    monkeypatch.setattr(Busybox, "from_file", lambda _, **__: busybox)
    monkeypatch.setattr(config_files, "find_tool", lambda name: Path("/usr/sbin", name))
    monkeypatch.setattr(config_files, "find_plugins", lambda: Path("/usr/lib/cni"))
    monkeypatch.setattr(config_files, "overlay_works", lambda _: True)
    monkeypatch.setattr(config_files, "uplink_mtu", lambda: 1500)
    monkeypatch.setattr(node_module, "run_command", lambda *_: "")
    monkeypatch.setattr(node_module, "uplink_mtu", lambda: 1500)
    monkeypatch.setattr(node_module, "forwarding_settings", lambda _: {})
    monkeypatch.setattr(node_module, "enable_masquerade", trace.step("masquerade"))
    monkeypatch.setattr(node_module, "kill_all", trace.step("kill_all"))
    monkeypatch.setattr(Cgroups, "create", trace.step("cgroups.create"))
    monkeypatch.setattr(Cgroups, "remove", trace.step("cgroups.remove"))
    monkeypatch.setattr(NodeNamespaces, "create", trace.step("namespaces.create"))
    monkeypatch.setattr(NodeNamespaces, "destroy", trace.step("namespaces.destroy"))
    monkeypatch.setattr(HostChanges, "apply_changes", trace.step("changes.apply"))
    monkeypatch.setattr(HostChanges, "release_changes", trace.step("changes.release"))
    return trace


@pytest.fixture(scope="module")
def authority() -> Authority:
    return Authority.create("platform")


@pytest.fixture
def options(tmp_path: Path) -> RealNodeOptions:
    return replace(OPTIONS, directory=tmp_path / "node")


@pytest.fixture
def node(options: RealNodeOptions, authority: Authority, trace: Trace) -> RealNode:
    return RealNode(options, authority=authority)


def files(directory: Path) -> dict[str, bytes]:
    return {str(path.relative_to(directory)): path.read_bytes() for path in directory.rglob("*") if path.is_file()}


def test_certificates_name_who_kubernetes_expects(node: RealNode, options: RealNodeOptions) -> None:
    node.prepare()
    pki = options.folders.pki_dir
    users = {name: common_name((pki / f"{name}.crt").read_bytes()) for name in ("kubelet", "kube-proxy", "coredns")}
    assert users == {"kubelet": "system:node:real-0", "kube-proxy": "system:kube-proxy", "coredns": "system:coredns"}
    assert alternative_names((pki / "kubelet-server.crt").read_bytes()) == {"real-0", "10.213.7.2"}
    assert {path.stat().st_mode & 0o777 for path in pki.glob("*.key")} == {0o600}


def test_prepared_twice_nothing_changes(node: RealNode, options: RealNodeOptions) -> None:
    node.prepare()
    before = files(options.directory)
    node.prepare()
    assert files(options.directory) == before


def test_new_authority_means_new_certificates(node: RealNode, options: RealNodeOptions, trace: Trace) -> None:
    node.prepare()
    old = (options.folders.pki_dir / "kubelet.crt").read_bytes()
    other = Authority.create("another")
    RealNode(options, authority=other).prepare()
    assert (options.folders.pki_dir / "kubelet.crt").read_bytes() != old
    assert other.has_signed((options.folders.pki_dir / "kubelet.crt").read_bytes())


@pytest.mark.parametrize("step", STEPS)
def test_prepare_continues_after_any_interruption(
    node: RealNode, options: RealNodeOptions, trace: Trace, step: str
) -> None:
    trace.fails_at = step
    with pytest.raises(ToolError, match=step):
        node.prepare()
    before = len(trace.steps)
    node.prepare()
    assert [name for name in trace.steps[before:] if name in STEPS] == [*STEPS, "changes.apply"]
    assert (options.folders.config_dir / "kubelet.yaml").exists()


@pytest.mark.parametrize("ready", [True, False])
def test_programs_are_killed_only_if_a_namespace_is_missing(
    node: RealNode, trace: Trace, monkeypatch: pytest.MonkeyPatch, ready: bool
) -> None:
    monkeypatch.setattr(NodeNamespaces, "is_ready", ready)
    node.prepare()
    assert ("kill_all" in trace.steps) is not ready
    if not ready:
        assert trace.steps.index("kill_all") < trace.steps.index("namespaces.create")


def test_missing_runc_is_an_obstacle(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(config_files, "find_tool", lambda _: None)
    monkeypatch.setattr(config_files, "find_obstacle", lambda: "missing runc: apt-get install runc")
    with pytest.raises(UnavailableError, match="no real node here: missing runc: apt-get install runc"):
        node.prepare()


def test_processes_run_inside_and_the_kubelet_stops_before_containerd(node: RealNode) -> None:
    specs = {spec.name: spec for spec in node.process_specs()}
    assert list(specs) == ["node/containerd", "node/netpol", "node/kubelet", "node/kube-proxy", "node/coredns"]
    assert all(spec.argv[0] == "nsenter" for spec in specs.values())
    assert specs["node/kubelet"].stop_rank > specs["node/containerd"].stop_rank
    assert "--node-ip=10.213.7.2" in specs["node/kubelet"].argv
    assert "--node-labels=platform.vkgateway.io/pool=real" in specs["node/kubelet"].argv
    assert specs["node/containerd"].env["PATH"].startswith("/bin:")


def test_tenants_containers_are_scheduled_as_usual(node: RealNode) -> None:
    assert not any(spec.batch for spec in node.process_specs()), "they would inherit it"


def test_every_file_that_a_process_is_given_exists(node: RealNode) -> None:
    node.prepare()
    given = [
        word.partition("=")[2]
        for spec in node.process_specs()
        for word in spec.argv
        if "config=" in word or "-conf=" in word
    ]
    assert len(given) == 5
    assert all(Path(path).exists() for path in given)


def test_teardown_kills_processes_first(node: RealNode, trace: Trace) -> None:
    node.teardown()
    assert trace.steps == ["kill_all", "namespaces.destroy", "cgroups.remove", "changes.release"]


def test_kubelet_keeps_gpus_over_its_restarts(options: RealNodeOptions) -> None:
    list(bind_mounts(options.folders))
    assert list((options.folders.kubelet_dir / "device-plugins").iterdir()) != []


def test_machine_wide_settings_are_hidden_behind_files_of_the_node(node: RealNode, options: RealNodeOptions) -> None:
    node.prepare()
    mounts = {place: source for source, place in bind_mounts(options.folders)}
    assert mounts["/var/lib/kubelet"] == str(options.folders.kubelet_dir)
    assert mounts["/run/containerd"] == "tmpfs"
    assert Path(mounts["/proc/sys/vm/overcommit_memory"]).read_text() == "1\n"
    assert all(Path(source).exists() for source in mounts.values() if source != "tmpfs")


def test_images_are_imported_once_and_again_when_they_change(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    present: set[str] = set()
    imported: list[str] = []

    def ctr(_: Containerd, *arguments: str) -> str:
        if arguments[1] == "import":
            imported.append(Path(arguments[2]).name)
            present.update(images.image_names(Path(arguments[2])))
        return "\n".join(present)

    monkeypatch.setattr(Containerd, "run_ctr", ctr)
    node.prepare()
    node.import_images()
    assert imported == ["pause-1.tar", "busybox-1.tar"]
    node.import_images()
    assert len(imported) == 2
    present.remove(images.PAUSE_IMAGE)
    node.import_images()
    assert imported[2:] == ["pause-1.tar"]
    monkeypatch.setattr(Busybox, "from_file", lambda _, **__: Busybox(program=b"another"))
    node.prepare()
    node.import_images()
    assert len(imported) == 5


def test_containerd_that_does_not_answer_is_an_error(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    def ctr(*_: object) -> str:
        raise ToolError("connection refused")

    monkeypatch.setattr(Containerd, "run_ctr", ctr)
    with pytest.raises(UnavailableError, match="containerd does not answer: connection refused"):
        node.import_images(timeout=0)


def test_kubelet_configuration_on_disk_is_that_of_this_node(node: RealNode, options: RealNodeOptions) -> None:
    node.prepare()
    config = yaml.safe_load((options.folders.config_dir / "kubelet.yaml").read_text())
    assert config["tlsCertFile"] == str(options.folders.pki_dir / "kubelet-server.crt")


def test_archives_are_given_time_and_images_are_listed_by_name(node: RealNode, monkeypatch: pytest.MonkeyPatch) -> None:
    calls: list[tuple[str, ...]] = []

    def ctr(_: Containerd, *arguments: str, timeout: float = 0) -> str:
        calls.append(arguments)
        assert arguments[1] != "import" or timeout > 60
        return "sha256:54\nsite/db:2\nsite/web:1\n"

    monkeypatch.setattr(Containerd, "run_ctr", ctr)
    node.containerd.load_archive(Path("/two.tar"))
    assert calls == [("images", "import", "/two.tar")]
    assert node.containerd.list_images() == ["site/db:2", "site/web:1"]
