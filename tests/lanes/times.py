"""Prints where the time of the last runs went: the slowest tests and set-ups, and the critical path of the workers."""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

TIMES = Path(__file__).parents[2] / "build" / "test-times.json"
SLOWEST = 30
_PHASES = ("setup", "call", "teardown")


def main() -> int:
    """Print the times of the given lanes, by default of all that ran; return the exit code."""
    parser = argparse.ArgumentParser(description=__doc__, epilog="Example: make test-times LANE=test")
    parser.add_argument("lanes", nargs="*", metavar="LANE", help="names of lanes that ran in this checkout")
    options = parser.parse_args()
    if not TIMES.exists():
        print(f"No lane ran yet: {TIMES.name} does not exist. `make test` writes it.", file=sys.stderr)
        return 1
    known = json.loads(TIMES.read_text())
    if unknown := [lane for lane in options.lanes if lane not in known]:
        print(f"No run of {', '.join(unknown)} is recorded. Recorded: {', '.join(known)}.", file=sys.stderr)
        return 2
    for lane in options.lanes or known:
        print_lane(lane, known[lane])
    return 0


def print_lane(name: str, lane: dict[str, Any]) -> None:
    """Print the times of a lane."""
    about = f"{lane['commit']}, {lane['date']}, {lane['cores']} cores, {lane['slowness']:g} times the reference"
    print(f"{name}: {lane['seconds'] / 60:.1f} min ({about})")
    for step, found in lane["steps"].items():
        print(f"  {step}: {found['seconds']:.0f} s")
    entries = [entry for found in lane["steps"].values() for entry in found["entries"]]
    tests: Counter[str] = Counter()
    files: Counter[str] = Counter()
    for entry in entries:
        if entry["kind"] in _PHASES:
            tests[entry["name"]] += entry["seconds"]
            files[entry["name"].partition("::")[0]] += entry["seconds"]
    fixtures = [entry for entry in entries if entry["kind"] == "fixture"]
    fixtures.sort(key=lambda entry: -entry["seconds"])
    print_rows("slowest tests, with set-up and teardown", tests.most_common(SLOWEST))
    print_rows(
        "slowest set-ups of fixtures",
        [(f"{entry['name']} ({entry['test']})", entry["seconds"]) for entry in fixtures[:SLOWEST]],
    )
    print_rows("files", files.most_common(SLOWEST))
    for step, found in lane["steps"].items():
        print_workers(step, found["entries"])


def print_rows(title: str, rows: Sequence[tuple[str, float]]) -> None:
    """Print seconds and names under a title, if there are any."""
    if rows:
        print(f"  {title}:")
        for text, seconds in rows:
            print(f"  {seconds:8.1f} s  {text}")


def print_workers(step: str, entries: list[dict[str, Any]]) -> None:
    """Print when each worker was done, and the files of the last one: the critical path of the step."""
    by_worker: dict[str, list[dict[str, Any]]] = {}
    for entry in entries:
        if entry["kind"] in _PHASES:
            by_worker.setdefault(entry["worker"], []).append(entry)
    if len(by_worker) < 2:
        return
    start = min(entry["began"] for entry in entries)
    ends = {name: max(e["began"] + e["seconds"] for e in found) - start for name, found in by_worker.items()}
    last = max(ends, key=lambda name: ends[name])
    print(f"  workers of {step}: " + ", ".join(f"{name} done at {ends[name]:.0f} s" for name in sorted(ends)))
    path: Counter[str] = Counter()
    for entry in by_worker[last]:
        path[entry["name"].partition("::")[0]] += entry["seconds"]
    print_rows(f"critical path of {step}, worker {last}", path.most_common(SLOWEST))


if __name__ == "__main__":
    sys.exit(main())
