"""Tests of the command line: command lookup, exit codes, error output."""

import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import click
import pytest
from click.shell_completion import ShellComplete

from vkgateway import platform_package
from vkgateway.api.errors import ConflictError, InputError, NotFoundError, UnavailableError, VkgatewayError
from vkgateway.cli import main, options
from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.version import __version__


@pytest.fixture
def raising(monkeypatch: pytest.MonkeyPatch) -> list[BaseException]:
    """Add a command `fail` that raises the errors of the list."""
    errors: list[BaseException] = []

    @click.command()
    def fail() -> None:
        raise errors[0]

    monkeypatch.setitem(main.cli.commands, "fail", fail)
    return errors


@pytest.fixture
def chosen(monkeypatch: pytest.MonkeyPatch) -> list[Path]:
    """Add a command `where` that appends its data directory to the list."""
    seen: list[Path] = []

    @click.command()
    @options.data_dir_option
    def where(data_dir: Path) -> None:
        seen.append(data_dir)

    monkeypatch.setitem(main.cli.commands, "where", where)
    return seen


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (VkgatewayError("wrong"), 1),
        (InputError("wrong"), 2),
        (NotFoundError("wrong"), 3),
        (ConflictError("wrong"), 4),
        (UnavailableError("wrong"), 5),
    ],
)
def test_exit_codes_match_documentation(
    raising: list[BaseException], capsys: pytest.CaptureFixture[str], error: VkgatewayError, code: int
) -> None:
    raising.append(error)
    assert main.run_command(["fail"]) == code
    assert capsys.readouterr().err == "Error: wrong\n"


def test_hint_is_on_separate_line(raising: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    raising.append(InputError("wrong", hint="do right"))
    main.run_command(["fail"])
    assert capsys.readouterr().err == "Error: wrong\n       do right\n"


def test_interruption_is_130(raising: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    raising.append(KeyboardInterrupt())
    assert main.run_command(["fail"]) == 130
    assert "Interrupted" in capsys.readouterr().err


def test_os_errors_name_the_file(raising: list[BaseException], capsys: pytest.CaptureFixture[str]) -> None:
    raising.append(OSError(28, "No space left on device", "/data/x"))
    assert main.run_command(["fail"]) == 1
    assert capsys.readouterr().err == "Error: /data/x: No space left on device\n"


def test_unknown_home_directory_is_an_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["status", "--data-dir", "~no-such-user-here/x"]) == 2
    assert "HOME is not set" in capsys.readouterr().err


@pytest.mark.parametrize("written", ["link", "real/../real", "real"])
def test_data_directory_is_resolved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, chosen: list[Path], written: str
) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    monkeypatch.chdir(tmp_path)
    assert main.run_command(["where", "--data-dir", written]) == 0
    assert chosen == [tmp_path / "real"]


def test_relative_data_home_is_ignored(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", "data")
    assert options.default_data_dir() == Path.home() / ".local" / "share" / "vkgateway"


def test_bugs_raise(raising: list[BaseException]) -> None:
    raising.append(ZeroDivisionError())
    with pytest.raises(ZeroDivisionError):
        main.run_command(["fail"])


@pytest.mark.parametrize("closed", ["2>&-", ">&-", "<&-", "<&- >&- 2>&-"])
def test_closed_streams_are_replaced(tmp_path: Path, closed: str) -> None:
    data_dir = tmp_path / "none"
    command = f"'{sys.executable}' -m vkgateway down --data-dir '{data_dir}' {closed}"
    assert subprocess.run(["sh", "-c", command], check=False).returncode == 3


@pytest.mark.parametrize("option", [("--port", "etcd=²"), ("--port-range", "²-5"), ("--hollow-nodes", "a100=²")])
def test_non_decimal_digits_are_refused(tmp_path: Path, option: tuple[str, str]) -> None:
    assert main.run_command(["up", *option, "--data-dir", str(tmp_path / "none")]) == 2
    assert not (tmp_path / "none").exists()


def test_range_of_webhooks_that_opens_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = ("--webhook-range", "10.20.0.0/16", "--webhook-range", "127.0.0.0/8")
    assert main.run_command(["up", *options, "--data-dir", str(tmp_path / "none")]) == 2
    assert "--webhook-range '127.0.0.0/8' has loopback addresses" in capsys.readouterr().err
    assert not (tmp_path / "none").exists()


def test_missing_logs_are_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["logs", "--data-dir", str(tmp_path)]) == 3
    assert f"there are no logs in {tmp_path}" in capsys.readouterr().err


def test_unknown_command_is_an_input_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_version_needs_no_platform(capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["version", "-o", "name"]) == 0
    assert capsys.readouterr().out.strip().count(".") == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_scripts_name_the_command(shell: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["completion", shell]) == 0
    assert "_VKGATEWAY_COMPLETE" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("words", "begun", "completed"),
    [
        ([], "ten", ["tenant"]),
        (["tenant"], "kube", ["kubeconfig"]),
        (["tenant", "create"], "--pod", ["--pod-security"]),
        (["tenant", "create", "--pod-security"], "re", ["restricted"]),
        (["status", "-o"], "", ["table", "json", "yaml", "name"]),
    ],
)
def test_commands_options_and_values_are_completed(words: list[str], begun: str, completed: list[str]) -> None:
    shell = ShellComplete(main.cli, {}, "vkgateway", "_VKGATEWAY_COMPLETE")
    assert [one.value for one in shell.get_completions(words, begun)] == completed


def test_missing_platform_exits_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run_command(["--data-dir", str(tmp_path), "tenant", "list"]) == 5
    assert f"no platform in {tmp_path}" in capsys.readouterr().err


def test_unreachable_server_exits_with_5(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    file = tmp_path / "kubeconfig"
    file.write_text(
        "clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}]\n"
        "contexts: [{name: c, context: {cluster: c}}]\ncurrent-context: c\nusers: []\n"
    )
    assert main.run_command(["tenant", "list", "--kubeconfig", str(file)]) == 5
    error = capsys.readouterr().err
    assert f"http://127.0.0.1:1 ({file}) is unreachable" in error
    assert "Traceback" not in error


def test_data_dir_option_works_before_and_after_command(monkeypatch: pytest.MonkeyPatch, chosen: list[Path]) -> None:
    monkeypatch.setenv("VKGATEWAY_DATA_DIR", "/env")
    for line in (["--data-dir", "/x", "where"], ["where", "--data-dir", "/y"], ["where"]):
        assert main.run_command(line) == 0
    monkeypatch.delenv("VKGATEWAY_DATA_DIR")
    monkeypatch.setenv("XDG_DATA_HOME", "/xdg")
    assert main.run_command(["where"]) == 0
    assert chosen == [Path("/x"), Path("/y"), Path("/env"), Path("/xdg/vkgateway")]


def commands(group: click.Group, path: tuple[str, ...] = ()) -> Iterator[tuple[str, click.Command]]:
    context = click.Context(group)
    for name in group.list_commands(context):
        command = group.get_command(context, name)
        assert command is not None
        if isinstance(command, click.Group):
            yield from commands(command, (*path, name))
        yield " ".join((*path, name)), command


def test_every_command_has_help_an_example_and_a_data_directory() -> None:
    for name, command in commands(main.cli):
        assert command.help, name
        assert "xample" in (command.epilog or ""), name
        if not isinstance(command, click.Group):
            assert any("--data-dir" in one.opts for one in command.params), name


def test_examples_are_on_one_line() -> None:
    """A command that is wrapped at a dash cannot be copied, however narrow the terminal is."""
    root = click.Context(main.cli, help_option_names=main.cli.context_settings["help_option_names"])
    for name, command in commands(main.cli):
        text = command.get_help(click.Context(command, parent=root, info_name=name, terminal_width=60))
        for line in (command.epilog or "").replace("\b", "").splitlines():
            assert line in text, name


def test_every_group_has_help_and_an_example() -> None:
    context = click.Context(main.cli)
    groups = [main.cli.get_command(context, name) for name in main.COMMANDS]
    assert not [one.name for one in groups if isinstance(one, click.Group) and not (one.help and one.epilog)]


def test_only_the_invoked_command_is_imported() -> None:
    script = (
        "import sys; from vkgateway.cli import main; main.run_command(['completion', 'bash']);"
        "print([name for name in sys.modules if name in ('aiohttp', 'rich', 'grpc', 'vkgateway.cli.tenant')])"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines()[-1] == "[]"


def test_lazy_group_refuses_other_objects() -> None:
    group = LazyGroup(lazy={"x": "os:path"})
    with pytest.raises(TypeError, match="os:path"):
        group.get_command(click.Context(group), "x")


def test_commands_of_the_platform_need_its_package(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(platform_package, "is_installed", lambda: False)
    assert main.run_command(["--help"]) == 0
    shown = capsys.readouterr().out
    assert "tenant " in shown
    assert "serve " in shown
    assert not {"up", "status", "simulate", "binaries"} & {line.split()[0] for line in shown.splitlines() if line}
    assert main.run_command(["up"]) == 5
    assert "the command 'up' needs the embedded platform" in (error := capsys.readouterr().err)
    assert f"pip install vkgateway-platform=={__version__}" in error
