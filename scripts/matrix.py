"""The end-to-end tests with other releases of Kubernetes: older tenants on a newer compute cluster, and the reverse.

Without arguments all pairs are run, one after the other; arguments name some, as COMPUTE/TENANTS (1.36.3/1.30.14).
What is seen goes to docs/reference/kubernetes-releases.md. Each pair takes about as long as `make test-e2e`.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path

from vkgateway.local.real_node_steps import why_no_real_node
from vkgateway.local.realnode.options import PROGRAMS as REAL_NODE
from vkgateway.model.api import DEFAULT_KUBERNETES_VERSION
from vkgateway.programs.binaries.catalogue import CORE_PROGRAMS

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "reference" / "kubernetes-releases.md"
BEGIN, END = "<!-- seen: begin -->", "<!-- seen: end -->"
NEWEST = DEFAULT_KUBERNETES_VERSION
PAIRS = [(NEWEST, "1.30.14"), (NEWEST, "1.33.13"), ("1.30.14", NEWEST), ("1.33.13", NEWEST)]
TESTS = "tests/e2e"


@dataclass
class Seen:
    """What a run came to: how many tests passed and were skipped, and which failed."""

    compute: str
    tenants: str
    minutes: float
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, compute: str, tenants: str, report: Path, minutes: float) -> Seen:
        """Read pytest's report in JUnit's form."""
        seen = cls(compute, tenants, minutes)
        for case in ET.parse(report).getroot().iter("testcase"):  # noqa: S314 - our own file
            name = f"{case.get('classname', '').rpartition('.')[2]}::{case.get('name')}"
            if case.find("failure") is not None or case.find("error") is not None:
                seen.failed.append(name)
            elif case.find("skipped") is not None:
                seen.skipped += 1
            else:
                seen.passed += 1
        return seen

    def row(self) -> str:
        """A line of the page's table."""
        failed = ", ".join(f"`{name}`" for name in self.failed) or "none"
        today = datetime.now(UTC).date().isoformat()
        cells = [self.compute, self.tenants, self.passed, self.skipped, failed, f"{self.minutes:.0f}", today]
        return f"| {' | '.join(map(str, cells))} |"


def fetch(version: str, *programs: str) -> bool:
    """Have a release's programs, in plain sight: tests do not wait for builds. Whether all are there."""
    argv = [sys.executable, "-m", "vkgateway", "binaries", "fetch", "--kubernetes-version", version, *programs]
    return subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def run(compute: str, tenants: str) -> Seen:
    """Run the tests with a pair of releases, in plain sight."""
    print(f"── compute cluster {compute}, tenants {tenants}", file=sys.stderr, flush=True)
    if not (fetch(compute, *CORE_PROGRAMS) and fetch(tenants, *CORE_PROGRAMS)):
        raise SystemExit(f"matrix.py: the programs of {compute} and {tenants} cannot be had; see above")
    if not why_no_real_node("auto") and not fetch(compute, *REAL_NODE):
        print(f"matrix.py: without a real node, whose programs of {compute} cannot be had; see above", file=sys.stderr)
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{compute}-{tenants}.xml"
    env = os.environ | {"VKGATEWAY_TEST_COMPUTE_VERSION": compute, "VKGATEWAY_TEST_TENANT_VERSION": tenants}
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}"]
    argv += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    started = time.monotonic()
    subprocess.run([*argv, *os.environ.get("VKGATEWAY_MATRIX_TESTS", TESTS).split()], cwd=ROOT, env=env, check=False)
    return Seen.read(compute, tenants, report, (time.monotonic() - started) / 60)


def write(seen: Seen) -> None:
    """Put a row into the page's table, between its marks; those of other pairs stay."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    before, _, tail = rest.partition(END)
    seen_before = (line for line in before.splitlines() if line.startswith("| ") and line[2].isdigit())
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in seen_before}
    rows[seen.compute, seen.tenants] = seen.row()
    table = [
        f"Seen with `make test-matrix` on {os.cpu_count()} cores:",
        "",
        "| compute cluster | tenants | passed | skipped | failed | minutes | on |",
        "|---|---|---|---|---|---|---|",
        *(rows[pair] for pair in sorted(rows, reverse=True)),
    ]
    PAGE.write_text("\n".join([f"{head}{BEGIN}", *table, f"{END}{tail}"]))


def main() -> int:
    """Run what was asked for; 0 if nothing failed."""
    asked = [tuple(argument.split("/")) for argument in sys.argv[1:]] or PAIRS
    if any(len(pair) != 2 for pair in asked):
        print("matrix.py: a pair is COMPUTE/TENANTS, such as 1.36.3/1.30.14", file=sys.stderr)
        return 2
    found = []
    for compute, tenants in asked:
        found.append(run(compute, tenants))
        write(found[-1])
    for seen in found:
        print(seen.row())
    return 1 if any(seen.failed for seen in found) else 0


if __name__ == "__main__":
    sys.exit(main())
