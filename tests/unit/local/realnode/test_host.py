"""The last platform reverts changes to the machine, and errors of tools are one sentence."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vkgateway_platform.embedded.realnode.host import HostChanges, ToolError, command_succeeds, run_command


class Machine:
    """A directory with a kernel setting and paths that may change."""

    def __init__(self, root: Path) -> None:
        root.mkdir()
        self.root = root
        self.setting = root / "forwarding"
        self.setting.write_text("0\n")
        self.claims = HostChanges(root / "run")
        self.place = root / "var/lib/kubelet"

    def claim(self, user: str) -> None:
        self.claims.apply_changes(user, settings={str(self.setting): "1"}, directories=[str(self.place)])

    def names(self) -> list[str]:
        return sorted(path.name for path in self.root.iterdir())


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    return Machine(tmp_path / "machine")


def test_one_platform_leaves_the_machine_as_it_was(machine: Machine) -> None:
    machine.claim("a")
    assert machine.setting.read_text() == "1"
    assert machine.place.is_dir()
    machine.claims.release_changes("a")
    assert machine.setting.read_text() == "0"
    assert machine.names() == ["forwarding"]


def test_existing_state_is_kept(machine: Machine) -> None:
    machine.place.parent.mkdir(parents=True)
    machine.setting.write_text("1")
    machine.claim("a")
    machine.claims.release_changes("a")
    assert machine.setting.read_text() == "1"
    assert machine.place.parent.is_dir()
    assert not machine.place.exists()


def test_directory_used_by_another_program_is_kept(machine: Machine) -> None:
    machine.claim("a")
    (machine.place / "theirs").touch()
    machine.claims.release_changes("a")
    assert (machine.place / "theirs").exists()


@settings(max_examples=30, deadline=None)
@given(st.lists(st.tuples(st.booleans(), st.sampled_from("abc")), max_size=12))
def test_change_lasts_while_a_platform_needs_it(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[bool, str]]
) -> None:
    machine = Machine(tmp_path_factory.mktemp("claims") / "machine")
    users: set[str] = set()
    for comes, user in steps:
        if comes:
            users.add(user)
            machine.claim(user)
        else:
            users.discard(user)
            machine.claims.release_changes(user)
        assert machine.setting.read_text().strip() == ("1" if users else "0")
        assert machine.place.exists() is bool(users)
    if not users:
        assert machine.names() == ["forwarding"]


def test_missing_interface_needs_no_revert(machine: Machine) -> None:
    machine.claim("a")
    machine.setting.unlink()
    machine.claims.release_changes("a")
    assert machine.names() == []


def test_error_of_a_tool_has_the_end_of_its_output() -> None:
    with pytest.raises(ToolError, match=r"`sh -c echo one >&2; echo two >&2; exit 3` failed: two"):
        run_command("sh", "-c", "echo one >&2; echo two >&2; exit 3")


def test_error_without_output_has_the_exit_code() -> None:
    with pytest.raises(ToolError, match="failed: exit 4"):
        run_command("sh", "-c", "exit 4")


def test_missing_tool_is_named() -> None:
    with pytest.raises(ToolError, match="no-such-tool is not installed"):
        run_command("no-such-tool")


def test_hanging_tool_is_killed() -> None:
    with pytest.raises(ToolError, match="did not end within 0 s"):
        run_command("sleep", "60", timeout=0.05)


def test_command_success_is_reported() -> None:
    assert command_succeeds("true")
    assert not command_succeeds("false")
    assert run_command("cat", stdin="in") == "in"
