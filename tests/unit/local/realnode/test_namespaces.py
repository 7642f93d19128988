"""Entering the node's namespaces, inspecting their content, and the rules on the machine."""

from pathlib import Path

import pytest

from vkgateway_platform.embedded.realnode import host_network, namespaces
from vkgateway_platform.embedded.realnode.cgroups import Cgroups
from vkgateway_platform.embedded.realnode.host import ToolError
from vkgateway_platform.embedded.realnode.namespaces import NodeNamespaces
from vkgateway_platform.embedded.realnode.options import NodeNetwork

NODE = NodeNamespaces(NodeNetwork(7), Path("/data/node/ns"))


class Recorder:
    """A fake of the machine's tools: records commands, answers from a table, fails on demand."""

    def __init__(self) -> None:
        self.commands: list[str] = []
        self.inputs: list[str] = []
        self.answers: dict[str, str] = {}
        self.failing = ""

    def run(self, *command: str, stdin: str = "", timeout: float = 0) -> str:
        line = " ".join(command)
        self.commands.append(line)
        self.inputs.append(stdin)
        if self.failing and self.failing in line:
            raise ToolError(f"`{line}` failed")
        return self.answers.get(line, "")

    def succeeds(self, *command: str) -> bool:
        return " ".join(command) in self.answers


@pytest.fixture
def tools(monkeypatch: pytest.MonkeyPatch) -> Recorder:
    recorder = Recorder()
    monkeypatch.setattr(namespaces, "run_command", recorder.run)
    monkeypatch.setattr(host_network, "run_command", recorder.run)
    monkeypatch.setattr(host_network, "command_succeeds", recorder.succeeds)
    return recorder


@pytest.fixture(autouse=True)
def machine_without_interfaces(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A platform that runs on this machine may have the number 7."""
    folder = property(lambda link: tmp_path / "sys-class-net" / link.network.host_link)
    monkeypatch.setattr(host_network.HostLink, "_directory", folder)


def test_command_runs_in_both_namespaces_as_the_same_process() -> None:
    assert NODE.enter_command("/bin/kubelet", "-v=2") == (
        "nsenter",
        "--net=/data/node/ns/net",
        "--mount=/data/node/ns/mnt",
        "--",
        "/bin/kubelet",
        "-v=2",
    )


def test_mounts_are_read_with_their_awkward_names(tmp_path: Path) -> None:
    table = tmp_path / "mountinfo"
    table.write_text(
        "21 1 0:1 / /proc rw shared:1 - proc proc rw\n"
        "22 1 254:0 /a /data/with\\040blank\\134slash rw - ext4 /dev/vda rw\n"
        "23 22 254:0 /a /data/with\\040blank\\134slash rw - ext4 /dev/vda rw\n"
    )
    assert namespaces.mount_points(table) == ["/proc", "/data/with blank\\slash", "/data/with blank\\slash"]


def test_namespace_is_known_by_its_file_and_an_ordinary_file_is_none(tmp_path: Path) -> None:
    (tmp_path / "net").touch()
    (tmp_path / "mnt").touch()
    ordinary = NodeNamespaces(NodeNetwork(7), tmp_path)
    assert ordinary.is_ready is False
    assert ordinary.list_members() == set()


def test_repeated_mounts_are_all_unmounted(tools: Recorder, monkeypatch: pytest.MonkeyPatch) -> None:
    places = ["/", "/data/node/ns", "/data/node/ns/mnt", "/data/node/ns", "/data/other/ns"]
    monkeypatch.setattr(namespaces, "mount_points", lambda: places)
    tools.answers["nft list table ip vkg7"] = "table ip vkg7 {}"
    NODE.destroy()
    assert tools.commands == [
        "umount /data/node/ns/mnt",
        "umount /data/node/ns",
        "umount /data/node/ns",
        "nft delete table ip vkg7",
    ]


def test_mounts_are_found_behind_a_link(tools: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "true").mkdir()
    (tmp_path / "link").symlink_to("true")
    monkeypatch.setattr(namespaces, "mount_points", lambda: [str(tmp_path / "true/mnt")])
    NodeNamespaces(NodeNetwork(7), tmp_path / "link").destroy()
    assert tools.commands == [f"umount {tmp_path / 'link/mnt'}"]


def test_destroy_without_namespaces_does_nothing(tools: Recorder) -> None:
    NODE.destroy()
    assert tools.commands == []


@pytest.mark.parametrize(
    "failing", ["mount --make-private", "unshare --net", "ip link add", "nsenter", "unshare --mount"]
)
def test_incomplete_namespaces_are_removed(
    tools: Recorder, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, failing: str
) -> None:
    monkeypatch.setattr(namespaces, "mount_points", lambda: [str(tmp_path)] if tools.commands else [])
    tools.failing = failing
    with pytest.raises(ToolError, match=failing):
        NodeNamespaces(NodeNetwork(7), tmp_path).create(mounts=[("tmpfs", "/run/containerd")], mtu=1400)
    assert tools.commands[-1] == f"umount {tmp_path}"


def test_mounts_are_passed_in_pairs(tools: Recorder, tmp_path: Path) -> None:
    NodeNamespaces(NodeNetwork(7), tmp_path).create(mounts=[("tmpfs", "/run/x"), ("/data/a b", "/var/y")], mtu=1400)
    assert tools.commands[-1].endswith("sh tmpfs /run/x /data/a b /var/y")
    assert "ip link add vkgv7 mtu 1400 type veth peer name eth0 mtu 1400 netns" in "\n".join(tools.commands)
    assert "ip route replace 10.214.7.0/24 via 10.213.7.2" in tools.commands


def test_pods_leave_under_the_machines_address(tools: Recorder) -> None:
    host_network.enable_masquerade(NodeNetwork(7))
    assert tools.commands == ["nft -f -"]
    assert 'ip saddr { 10.213.7.2, 10.214.7.0/24 } oifname != "vkgv7" masquerade' in tools.inputs[0]


def test_packets_pass_between_the_node_and_every_uplink(tools: Recorder) -> None:
    tools.answers["ip -4 route show default"] = (
        "default via 192.0.2.1 dev eth0 metric 100\ndefault via 198.51.100.1 dev wlan0 metric 600\n"
    )
    assert dict(host_network.forwarding_settings(NodeNetwork(7))) == {
        f"/proc/sys/net/ipv4/conf/{name}/forwarding": "1" for name in ("vkgv7", "eth0", "wlan0")
    }


def test_machine_without_a_default_route_has_no_uplink(tools: Recorder) -> None:
    assert host_network.list_uplinks() == []
    assert host_network.uplink_mtu() == 1500


class Undying:
    """Namespaces whose processes survive some rounds of SIGKILL."""

    def __init__(self, rounds: int) -> None:
        self.rounds = rounds

    def list_members(self) -> set[int]:
        self.rounds -= 1
        return {2**22 + 1} if self.rounds >= 0 else set()  # above the highest pid of Linux


def test_kill_all_repeats_until_no_process_is_left(tmp_path: Path) -> None:
    node = Undying(2)
    namespaces.kill_all(node, Cgroups("vkg7", tmp_path), patience=10)  # type: ignore[arg-type]
    assert node.rounds == -1


def test_processes_that_survive_are_named(tmp_path: Path) -> None:
    with pytest.raises(ToolError, match=r"processes \[4194305\] of the real node do not die"):
        namespaces.kill_all(Undying(1000), Cgroups("vkg7", tmp_path), patience=0)  # type: ignore[arg-type]
