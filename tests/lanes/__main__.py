"""Runs lanes of `tests/lanes/table.py`, and prints a table of their results.

`--changed` runs the lanes that the files changed since a commit require; `all` runs every lane. Each lane's times go to
build/test-times.json, which `make test-times` prints.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from tests.lanes.table import BESIDES_TEST, LANES, Lane, Step, lanes_for
from tests.support import machine
from tests.support.times import FOLDER_VARIABLE
from vkgateway.cli.output import Column, print_table
from vkgateway_platform.binaries.cache import Cache

ROOT = Path(__file__).parents[2]
BIN = Path(sys.executable).parent
RECORD = ROOT / "build" / "test-record"
TIMES = ROOT / "build" / "test-times.json"
BASE_VARIABLE = "VKGATEWAY_CI_BASE"
PREFIX = f"vkg-{os.getpid()}-"
"""Of the platforms' directories, so that an interrupted run can remove them."""
_FORCED = 130
_COLUMNS: Sequence[Column[object]] = [
    Column("lane", str),
    Column("result", str),
    *(Column(title, str, "right") for title in ("tests", "passed", "failed", "skipped", "minutes")),
]


@dataclass
class Result:
    """Result of a step or of a lane."""

    name: str
    passed: int = 0
    failed: int = 0
    skipped: Counter[str] = field(default_factory=Counter)
    """Number of skipped tests by reason."""
    seconds: float = 0.0
    code: int = 0
    entries: list[dict[str, Any]] = field(default_factory=list)

    @property
    def is_failed(self) -> bool:
        """Whether a command failed, also without a failed test."""
        return self.code != 0 or self.failed > 0

    def row(self) -> list[str]:
        """Return the row of the table."""
        skipped = sum(self.skipped.values())
        tests = self.passed + self.failed + skipped
        outcome = "failed" if self.is_failed else "passed"
        counts = [str(count) for count in (tests, self.passed, self.failed, skipped)]
        return [self.name, outcome, *(counts if tests else [""] * 4), f"{self.seconds / 60:.1f}"]


class Runner:
    """Runs the steps of lanes, prints their output line by line, and ends them when it is interrupted."""

    def __init__(self) -> None:
        self._running: set[subprocess.Popen[str]] = set()
        self._interrupted = False
        self._printing = threading.Lock()

    def run_lane(self, lane: Lane) -> tuple[Result, list[Result]]:
        """Run a lane; return its result and that of each step."""
        began = time.monotonic()
        steps = self._run_steps(lane)
        code = next((step.code for step in steps if step.code), 0)
        total = Result(lane.name, seconds=time.monotonic() - began, code=code)
        for step in steps:
            total.passed += step.passed
            total.failed += step.failed
            total.skipped += step.skipped
        _write_times(lane, total, steps)
        return total, steps

    def interrupt(self, *_: object) -> None:
        """End the running steps as Ctrl-C does, and start no more."""
        self._interrupted = True
        for process in list(self._running):
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGINT)

    @property
    def is_interrupted(self) -> bool:
        """Whether the run was interrupted."""
        return self._interrupted

    def _run_steps(self, lane: Lane) -> list[Result]:
        for step in lane.prepare:
            prepared = self._run_step(lane, step, many=False)
            if prepared.code:
                return [prepared]
        with ThreadPoolExecutor(len(lane.tracks)) as pool:
            tracks = [pool.submit(self._run_track, lane, track) for track in lane.tracks]
            return [result for track in tracks for result in track.result()]

    def _run_track(self, lane: Lane, track: Sequence[Step]) -> list[Result]:
        results = []
        for step in track:
            if self._interrupted:
                break
            results.append(self._run_step(lane, step, many=len(lane.tracks) > 1))
        return results

    def _run_step(self, lane: Lane, step: Step, *, many: bool) -> Result:
        began = time.monotonic()
        record = RECORD / lane.name / step.name.replace(" ", "-")
        shutil.rmtree(record, ignore_errors=True)
        record.mkdir(parents=True)
        argv = _resolve_program(step.argv)
        self._print(f"── {step.name}: {' '.join(step.argv)}")
        environment = {
            **step.env,
            **os.environ,
            FOLDER_VARIABLE: str(record),
            "VKGATEWAY_TEST_PREFIX": PREFIX,
            "PYTHONUNBUFFERED": "1",
            "PATH": os.pathsep.join((str(BIN), os.environ.get("PATH", os.defpath))),
        }
        # Otherwise every worker and every command of the tests would compile all modules again.
        environment.pop("PYTHONDONTWRITEBYTECODE", None)
        process = subprocess.Popen(
            ["nice", "-n", str(step.niceness), *argv],
            cwd=ROOT,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._running.add(process)
        if self._interrupted:
            self.interrupt()
        assert process.stdout is not None
        with process.stdout:
            for line in process.stdout:
                self._print(f"{step.name} │ {line.rstrip()}" if many else line.rstrip())
        code = process.wait()
        self._running.discard(process)
        result = read_record(step.name, record)
        result.code, result.seconds = code, time.monotonic() - began
        self._print(f"── {step.name}: {'failed' if result.is_failed else 'passed'} after {result.seconds:.0f} s")
        return result

    def _print(self, line: str) -> None:
        with self._printing:
            print(line, flush=True)


def _resolve_program(argv: Sequence[str]) -> list[str]:
    """Return the arguments with a program of the virtual environment or of the checkout by its path."""
    own = next((folder / argv[0] for folder in (BIN, ROOT) if (folder / argv[0]).is_file()), Path(argv[0]))
    return [str(own), *argv[1:]]


def read_record(name: str, folder: Path) -> Result:
    """Return the result of a step from the records of its test processes.

    A test fails if any of its phases fails, and is skipped if one is skipped.
    """
    result = Result(name)
    for file in sorted(folder.glob("*.jsonl")):
        result.entries += map(json.loads, file.read_text().splitlines())
    outcomes: dict[str, set[str]] = {}
    for entry in result.entries:
        if entry["kind"] != "fixture":
            outcomes.setdefault(entry["name"], set()).add(entry["outcome"])
            if entry["outcome"] == "skipped":
                result.skipped[entry["reason"] or "no reason"] += 1
    for seen in outcomes.values():
        result.failed += "failed" in seen
        result.passed += seen == {"passed"}
    return result


def _write_times(lane: Lane, total: Result, steps: Iterable[Result]) -> None:
    """Replace the lane's entry in build/test-times.json."""
    known: dict[str, Any] = {}
    with contextlib.suppress(OSError, ValueError):
        known = json.loads(TIMES.read_text())
    known[lane.name] = {
        "date": time.strftime("%Y-%m-%d %H:%M"),
        "commit": _git("rev-parse", "--short", "HEAD"),
        "cores": os.cpu_count(),
        "slowness": round(machine.slowness(), 2),
        "seconds": round(total.seconds, 1),
        "steps": {step.name: {"seconds": round(step.seconds, 1), "entries": step.entries} for step in steps},
    }
    written = TIMES.with_suffix(".new")
    written.write_text(json.dumps(known))
    written.replace(TIMES)


def _git(*args: str) -> str:
    done = subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip() if done.returncode == 0 else ""


def changed_files(base: str) -> tuple[str, list[str] | None]:
    """Return a phrase about the commit that changes are counted from, and the changed files; None if it is unknown.

    In a clone, origin/main can be the commit itself. Then the last commit that passed on this machine counts.
    """
    head = _git("rev-parse", "HEAD")
    passed = _passed_file().read_text().strip() if _passed_file().exists() else ""
    for source, name in (("given", base), ("origin/main", "origin/main"), ("passed here before", passed)):
        commit = _git("merge-base", "HEAD", name) if name else ""
        if commit and (commit != head or source == "given"):
            return f"{commit[:8]} ({source})", _git("diff", "--name-only", commit, "HEAD").splitlines()
    return "an unknown commit", None


def _passed_file() -> Path:
    return Cache.default_root() / "ci-passed"


def print_results(results: Sequence[tuple[Result, list[Result]]]) -> None:
    """Print the table, the reasons of skipped tests, and the failed tests."""
    rows = []
    for total, steps in results:
        rows.append(total.row())
        rows += [["  " + step.row()[0], *step.row()[1:]] for step in steps if len(steps) > 1]
    print()
    print_table(rows, columns=_COLUMNS)
    for total, steps in results:
        for reason, count in total.skipped.most_common():
            print(f"skipped in {total.name}: {count} ({reason})")
        for step in steps:
            failed = {entry["name"] for entry in step.entries if entry.get("outcome") == "failed"}
            for name in sorted(failed):
                print(f"FAILED {name}")
            if step.code and not failed:
                print(f"FAILED {total.name}, step {step.name}: exit code {step.code}")


def select_lanes(options: argparse.Namespace) -> tuple[list[Lane], list[str]]:
    """Return the lanes to run, and lines about the selection."""
    if not options.changed:
        lanes = {lane.name: lane for lane in LANES}
        names = [lane.name for lane in LANES if lane.in_all] if options.lanes == ["all"] else options.lanes
        return [lanes[name] for name in names], []
    source, changed = changed_files(os.environ.get(BASE_VARIABLE, ""))
    wanted = lanes_for(changed) if changed is not None else list(BESIDES_TEST)
    lines = [f"changes since {source}: {'all files' if changed is None else f'{len(changed)} files'}"]
    lines += [f"not run: {lane.name} (no file of it changed)" for lane in BESIDES_TEST if lane not in wanted]
    return wanted, lines


def main() -> int:
    """Run the lanes, and return the exit code."""
    parser = argparse.ArgumentParser(
        prog="python -m tests.lanes", description=__doc__, epilog="Example: python -m tests.lanes kueue volcano"
    )
    known = [lane.name for lane in LANES]
    parser.add_argument("lanes", nargs="*", metavar="LANE", help=f"all, or some of {', '.join(known)}")
    parser.add_argument(
        "--changed", action="store_true", help=f"select lanes by files changed since ${BASE_VARIABLE} or origin/main"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), help="start no lane that would end later")
    options = parser.parse_args()
    if unknown := set(options.lanes) - {*known, "all"}:
        parser.error(f"unknown lane {', '.join(sorted(unknown))}. Available lanes: all, {', '.join(known)}")
    machine.slowness()  # the steps inherit the result
    runner = Runner()
    for number in (signal.SIGINT, signal.SIGTERM):
        signal.signal(number, runner.interrupt)
    lanes, lines = select_lanes(options)
    results: list[tuple[Result, list[Result]]] = []
    began = time.monotonic()
    for lane in lanes:
        left = options.minutes - (time.monotonic() - began) / 60
        needed = lane.minutes[1] * machine.slowness()
        if runner.is_interrupted:
            lines.append(f"not run: {lane.name} (interrupted)")
        elif needed > left:
            lines.append(f"not run: {lane.name} (takes up to {needed:.0f} minutes here, {left:.0f} are left)")
        else:
            results.append(runner.run_lane(lane))
            lines.append(f"ran: {lane.name}")
    if runner.is_interrupted:
        _remove_platforms()
    if results:
        print_results(results)
    failed = any(total.is_failed for total, _ in results)
    if options.changed and not failed and not runner.is_interrupted:
        _passed_file().parent.mkdir(parents=True, exist_ok=True)
        _passed_file().write_text(_git("rev-parse", "HEAD"))
    for line in lines if options.changed or options.minutes != float("inf") else ():
        print(line)
    if results:
        totals = [total for total, _ in results]
        skipped = sum(sum(total.skipped.values()) for total in totals)
        broken = sum(total.failed or total.is_failed for total in totals)
        print(f"{sum(total.passed for total in totals)} passed, {broken} failed, {skipped} skipped")
    return _FORCED if runner.is_interrupted else int(failed)


def _remove_platforms() -> None:
    """Stop and remove what interrupted workers left: they are killed if they need longer than ten seconds."""
    for folder in Path(tempfile.gettempdir()).glob(f"{PREFIX}*"):
        down = (sys.executable, "-m", "vkgateway", "down", "--purge", "--yes", "-q", "--data-dir", str(folder))
        if subprocess.run(down, check=False).returncode == 0:
            shutil.rmtree(folder, ignore_errors=True)


if __name__ == "__main__":
    sys.exit(main())
