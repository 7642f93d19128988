"""Parts of the supervisor: names and digests, back-off, log lines, rotation, state file."""

from pathlib import Path

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from vkgateway.api.errors import InputError
from vkgateway.planes.supervisor import logs
from vkgateway.planes.supervisor import process_table as state_file
from vkgateway.planes.supervisor.process_table import Backoff
from vkgateway.planes.supervisor.running_process import describe_exit, process_environment
from vkgateway.planes.supervisor.spec import ProcessSpec, SupervisorPaths, in_group
from vkgateway.runtime.socket_paths import short_socket_path


@pytest.mark.parametrize(
    "name", ["", "Etcd", "a//b", "/a", "a/", "a.b", "a b", "../x", "supervisor", "guardian", "a" * 129]
)
def test_invalid_name_is_refused(name: str) -> None:
    with pytest.raises(InputError) as caught:
        ProcessSpec(name=name, argv=("true",))
    assert repr(name) in str(caught.value)


def test_spec_without_a_command_is_refused() -> None:
    with pytest.raises(InputError, match=r"etcd.*no command line"):
        ProcessSpec(name="etcd", argv=())


def test_digest_depends_on_content_only() -> None:
    one = ProcessSpec(name="etcd", argv=("etcd",), env={"A": "1", "B": "2"})
    same = ProcessSpec(name="etcd", argv=("etcd",), env={"B": "2", "A": "1"})
    other = ProcessSpec(name="etcd", argv=("etcd", "-v"), env={"A": "1", "B": "2"})
    assert one.short_digest() == same.short_digest() != other.short_digest()


@pytest.mark.parametrize(
    ("name", "prefix", "expected"),
    [
        ("tenant/a/etcd", "tenant/a", True),
        ("tenant/a/etcd", "tenant/a/", True),
        ("tenant/a", "tenant/a", True),
        ("tenant/ab/etcd", "tenant/a", False),
        ("etcd", "", True),
    ],
)
def test_group_matches_whole_segments(name: str, prefix: str, expected: bool) -> None:
    assert in_group(name, prefix) is expected


def test_backoff_doubles_up_to_a_limit_and_resets() -> None:
    backoff = Backoff(first=0.2, longest=30.0, healthy=30.0)
    pauses = [backoff.next_pause(lived=0.1) for _ in range(10)]
    assert pauses == pytest.approx([0.2, 0.4, 0.8, 1.6, 3.2, 6.4, 12.8, 25.6, 30.0, 30.0])
    assert backoff.next_pause(lived=30.0) == pytest.approx(0.2)


def test_zero_byte_is_refused() -> None:
    with pytest.raises(InputError, match="zero byte"):
        ProcessSpec(name="etcd", argv=("etcd",), env={"A": "x\0y"})


@given(lives=st.lists(st.floats(min_value=0, max_value=1000), max_size=50))
def test_backoff_stays_within_its_bounds(lives: list[float]) -> None:
    backoff = Backoff()
    assert all(0.2 <= backoff.next_pause(lived=lived) <= 30.0 for lived in lives)


@pytest.mark.parametrize(
    "telling",
    [
        "Error: unknown flag: --nonsense",
        "E1121 10:15:00.000000   12 run.go:72] command failed",
        "F1121 10:15:00.000000   12 run.go:72] cannot listen",
        "panic: runtime error: index out of range",
        '{"level":"fatal","ts":"2026-11-21","msg":"discovery failed"}',
        'time="2026-11-21T10:15:00Z" level=fatal msg="no plugins"',
        "vkgateway.api.errors.InputError: bad",
    ],
)
def test_error_line_is_the_last_error_not_the_last_line(tmp_path: Path, telling: str) -> None:
    log = tmp_path / "x.log"
    log.write_text(f"I1121 starting\n{telling}\n\ngoroutine 1 [running]:\nmain.main()\n\n")
    assert logs.last_error_line(log) == telling


def test_error_line_belongs_to_the_last_run(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    log.write_text("Error: of an earlier run\n")
    start = logs.log_size(log)
    with log.open("a") as file:
        file.write("all is well\n")
    assert logs.last_error_line(log, since=start) == "all is well"
    assert logs.last_error_line(log, since=10_000) == "Error: of an earlier run", "the log was cut meanwhile"
    assert logs.last_error_line(tmp_path / "none.log") == ""


def test_rotation_keeps_two_logs_while_the_process_writes(tmp_path: Path) -> None:
    log = tmp_path / "x.log"
    descriptor = logs.open_log(log)
    with open(descriptor, "w") as writer:
        for text in ("first", "second", "third", "end"):
            writer.write(text)
            writer.flush()
            rotated = logs.rotate_log(log, limit=3)
            assert rotated is (text != "end")
    assert log.read_text() == "end"
    assert (tmp_path / "x.log.1").read_text() == "third"
    assert (tmp_path / "x.log.2").read_text() == "second"
    assert not (tmp_path / "x.log.3").exists()
    assert log.stat().st_mode & 0o777 == 0o600


def test_full_disk_truncates_the_log_without_a_copy(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    log = tmp_path / "x.log"
    log.write_text("long enough")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("shutil.copyfile", full)
    assert logs.rotate_log(log, limit=3)
    assert log.read_text() == ""
    assert not (tmp_path / "x.log.1").exists()


def test_exit_is_described_in_words() -> None:
    assert [describe_exit(code) for code in (0, 3, -9, -200)] == [
        "exit code 0",
        "exit code 3",
        "killed by SIGKILL",
        "killed by signal 200",
    ]


def test_process_inherits_few_variables() -> None:
    spec = ProcessSpec(name="etcd", argv=("etcd",), env={"GOGC": "50"}, stop_rank=7)
    shell = {"PATH": "/bin", "HOME": "/h", "HTTPS_PROXY": "http://p", "KUBECONFIG": "/k"}
    found = process_environment(spec, data_dir=Path("/d"), inherited=shell)
    assert found == {
        "PATH": "/bin",
        "HOME": "/h",
        "GOGC": "50",
        "VKGATEWAY_SUPERVISED": f"7:{spec.short_digest()}:etcd:/d",
    }


def test_state_file_is_read_back(tmp_path: Path) -> None:
    paths = SupervisorPaths(tmp_path)
    paths.run_dir.mkdir()
    assert state_file.load_records(paths) == []
    record = state_file.ProcessRecord(
        spec=ProcessSpec(name="a/b", argv=("x",), env={"K": "v"}), pid=7, reason="exit code 1"
    )
    state_file.save_records(paths, [record])
    assert state_file.load_records(paths) == [record]
    assert paths.state_path.stat().st_mode & 0o777 == 0o600
    state_file.save_records(paths, [])
    assert not paths.state_path.exists()


@pytest.mark.parametrize("content", [b"", b"{", b'{"version": 2, "processes": []}', b'{"processes": [{"spec": 1}]}'])
def test_damaged_state_file_is_an_error(tmp_path: Path, content: bytes) -> None:
    paths = SupervisorPaths(tmp_path)
    paths.run_dir.mkdir()
    paths.state_path.write_bytes(content)
    with pytest.raises(msgspec.MsgspecError):
        state_file.load_records(paths)


def test_long_socket_path_is_shortened(tmp_path: Path) -> None:
    folder = tmp_path / ("x" * 120)
    folder.mkdir()
    (folder / "s").write_text("here")
    with short_socket_path(folder / "s") as short:
        assert len(short) < 100
        assert Path(short).read_text() == "here"
