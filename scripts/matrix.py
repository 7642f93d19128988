"""Runs the end-to-end tests with other Kubernetes versions: older tenants on newer compute clusters, and the reverse.

Arguments select pairs as COMPUTE/TENANTS (1.36.3/1.30.14); without arguments, all pairs run one after the other. The
results go to docs/reference/kubernetes-releases.md. Each pair takes about as long as `make test-e2e`.
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

from tests.lanes.table import PORTABLE_FILES
from vkgateway.api.types import DEFAULT_KUBERNETES_VERSION
from vkgateway_platform.binaries.catalogue import CORE_PROGRAMS
from vkgateway_platform.embedded.real_node_steps import why_no_real_node
from vkgateway_platform.embedded.realnode.options import PROGRAMS as REAL_NODE

ROOT = Path(__file__).parent.parent
REPORTS = ROOT / "build" / "matrix"
PAGE = ROOT / "docs" / "reference" / "kubernetes-releases.md"
BEGIN, END = "<!-- seen: begin -->", "<!-- seen: end -->"
NEWEST = DEFAULT_KUBERNETES_VERSION
PAIRS = [(NEWEST, "1.30.14"), (NEWEST, "1.33.13"), ("1.30.14", NEWEST), ("1.33.13", NEWEST)]


@dataclass
class Seen:
    """Result of a run: numbers of passed and skipped tests, and names of failed tests."""

    compute: str
    tenants: str
    minutes: float
    passed: int = 0
    skipped: int = 0
    failed: list[str] = field(default_factory=list)

    @classmethod
    def read(cls, compute: str, tenants: str, report: Path, minutes: float) -> Seen:
        """Return the result from pytest's JUnit report."""
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
        """Return the row of the page's table."""
        failed = ", ".join(f"`{name}`" for name in self.failed) or "none"
        today = datetime.now(UTC).date().isoformat()
        cells = [self.compute, self.tenants, self.passed, self.skipped, failed, f"{self.minutes:.0f}", today]
        return f"| {' | '.join(map(str, cells))} |"


def fetch(version: str, *programs: str) -> bool:
    """Fetch the programs of a Kubernetes version before the tests; return whether all are available."""
    argv = [sys.executable, "-m", "vkgateway", "binaries", "fetch", "--kubernetes-version", version, *programs]
    return subprocess.run(argv, cwd=ROOT, stdout=subprocess.DEVNULL, check=False).returncode == 0


def run(compute: str, tenants: str) -> Seen:
    """Run the tests with a pair of Kubernetes versions."""
    print(f"── compute cluster {compute}, tenants {tenants}", file=sys.stderr, flush=True)
    if not (fetch(compute, *CORE_PROGRAMS) and fetch(tenants, *CORE_PROGRAMS)):
        raise SystemExit(f"matrix.py: cannot fetch the programs of {compute} and {tenants}; see above")
    if not why_no_real_node("auto") and not fetch(compute, *REAL_NODE):
        print(f"matrix.py: no real node: cannot fetch its programs for {compute}; see above", file=sys.stderr)
    REPORTS.mkdir(parents=True, exist_ok=True)
    report = REPORTS / f"{compute}-{tenants}.xml"
    env = os.environ | {"VKGATEWAY_TEST_COMPUTE_VERSION": compute, "VKGATEWAY_TEST_TENANT_VERSION": tenants}
    argv = [sys.executable, "-m", "pytest", "-q", "--tb=short", f"--junitxml={report}"]
    argv += ["-n", "2", "--dist", "loadfile", "--no-loadscope-reorder"]
    started = time.monotonic()
    tests = os.environ.get("VKGATEWAY_MATRIX_TESTS", " ".join(PORTABLE_FILES)).split()
    subprocess.run([*argv, *tests], cwd=ROOT, env=env, check=False)
    return Seen.read(compute, tenants, report, (time.monotonic() - started) / 60)


def write(seen: Seen) -> None:
    """Write the row of a pair into the page's table; the rows of other pairs stay."""
    head, _, rest = PAGE.read_text().partition(BEGIN)
    before, _, tail = rest.partition(END)
    seen_before = (line for line in before.splitlines() if line.startswith("| ") and line[2].isdigit())
    rows = {tuple(cell.strip() for cell in line.split("|")[1:3]): line for line in seen_before}
    rows[seen.compute, seen.tenants] = seen.row()
    table = [
        f"Results of `make test-matrix` on {os.cpu_count()} cores:",
        "",
        "| compute cluster | tenants | passed | skipped | failed | minutes | on |",
        "|---|---|---|---|---|---|---|",
        *(rows[pair] for pair in sorted(rows, reverse=True)),
    ]
    PAGE.write_text("\n".join([f"{head}{BEGIN}", *table, f"{END}{tail}"]))


def main() -> int:
    """Run the selected pairs; return 0 if no test failed."""
    pairs = [tuple(argument.split("/")) for argument in sys.argv[1:]] or PAIRS
    if any(len(pair) != 2 for pair in pairs):
        print("matrix.py: a pair has the form COMPUTE/TENANTS, such as 1.36.3/1.30.14", file=sys.stderr)
        return 2
    found = []
    for compute, tenants in pairs:
        found.append(run(compute, tenants))
        write(found[-1])
    for seen in found:
        print(seen.row())
    return 1 if any(seen.failed for seen in found) else 0


if __name__ == "__main__":
    sys.exit(main())
