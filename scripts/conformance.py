"""Runs the Kubernetes conformance tests on a separate platform: on its real node, then in a tenant.

The results are written to docs/reference/conformance.md, and by case to the JSON file next to it. `--page` writes
them without a run. `--known FILE` continues from such a file of another machine.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import msgspec
from conformance_page import import_results, render_tables, write_results

from vkgateway.api.errors import InputError
from vkgateway.cli.options import default_data_dir
from vkgateway_platform.cli.conformance_clusters import BASELINE_NAME, results_folder
from vkgateway_platform.conformance.comparison import Comparison
from vkgateway_platform.conformance.runner import record_file

TENANT = "conformance"
MANIFEST = Path(__file__).with_name("conformance-tenant.yaml")
VKGATEWAY = Path(sys.executable).with_name("vkgateway")
PAGE = Path(__file__).parent.parent / "docs" / "reference" / "conformance.md"
CASES = PAGE.with_suffix(".json")
BEGIN, END = "<!-- seen: begin -->", "<!-- seen: end -->"
SIDES = {BASELINE_NAME: "", TENANT: TENANT}
"""Tenant by name of the side in docs/reference/conformance.json."""
NOT_ALL_PASSED = 1


def main() -> int:
    """Run the remaining cases; return 1 if a case failed, or the exit code of a failed command."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--focus", default=os.environ.get("FOCUS", ""), help="only cases whose name matches [env: FOCUS]"
    )
    parser.add_argument("--workers", default=os.environ.get("WORKERS", "4"), help="concurrent cases [env: WORKERS]")
    parser.add_argument("--again", default=os.environ.get("AGAIN", "none"), help="none, failed or all [env: AGAIN]")
    parser.add_argument(
        "--often", default=os.environ.get("OFTEN", "1"), help="runs of each case in the tenant [env: OFTEN]"
    )
    parser.add_argument("--known", type=Path, default=os.environ.get("KNOWN"), help="continue from FILE [env: KNOWN]")
    parser.add_argument("--page", action="store_true", help="write the page without a run")
    options = parser.parse_args()
    os.environ.setdefault("VKGATEWAY_DATA_DIR", str(data_dir()))
    os.environ.pop("VKGATEWAY_KUBECONFIG", None)
    if options.known and (code := take_over(options.known)):
        return code
    if options.page:
        return write_page()
    chosen = ("--focus", options.focus) if options.focus else ()
    # Hollow nodes run no containers: cases that are scheduled there would fail.
    hollow = ("--hollow-nodes", "a100=0", "--hollow-nodes", "v100=0")
    if code := call("up", "--real-node", "yes", *hollow):
        return code
    describe = [str(VKGATEWAY), "tenant", "describe", TENANT]
    exists = subprocess.run(describe, capture_output=True, check=False).returncode == 0
    if not exists and (code := call("tenant", "create", "-f", str(MANIFEST))):
        return code
    how = (*chosen, "--workers", options.workers, "--again", options.again)
    codes = set()
    for cluster in (("--straight",), (TENANT, "--often", options.often)):
        if (code := call("conformance", "run", *cluster, *how)) not in {0, NOT_ALL_PASSED}:
            return code
        codes.add(code)
    codes.add(call("conformance", "report", TENANT, *chosen))
    codes.add(write_page())
    codes.add(call("down"))
    return max(codes)


def data_dir() -> Path:
    """Return the data directory of the conformance platform, separate from the user's platform."""
    return default_data_dir().with_name("vkgateway-conformance")


def take_over(file: Path) -> int:
    """Import the results of a file for cases without a result; return the exit code."""
    base = Path(os.environ["VKGATEWAY_DATA_DIR"])
    try:
        import_results(file, {name: record_file(results_folder(base, tenant)) for name, tenant in SIDES.items()})
    except InputError as error:
        print(f"Error: {error}. {error.hint or ''}", file=sys.stderr)
        return error.exit_code
    return 0


def write_page() -> int:
    """Write the results of all cases to the page and to its JSON file; return the exit code of a failed command."""
    argv = ("conformance", "report", TENANT, "-o", "json")
    report = subprocess.run([VKGATEWAY, *argv], stdout=subprocess.PIPE, check=False)
    if report.returncode:
        return report.returncode
    found = msgspec.json.decode(report.stdout, type=Comparison)
    head, _, rest = PAGE.read_text().partition(BEGIN)
    tail = rest.partition(END)[2]
    day = datetime.now(UTC).date().isoformat()
    seen = f"Kubernetes {found.kubernetes_version}, {os.cpu_count()} cores, as of {day}:"
    PAGE.write_text(f"{head}{BEGIN}\n{seen}\n\n{render_tables(found)}\n{END}{tail}")
    write_results(CASES, found, baseline=BASELINE_NAME)
    return 0


def call(*arguments: str) -> int:
    """Run vkgateway and return its exit code."""
    print("$ vkgateway " + " ".join(arguments), file=sys.stderr, flush=True)
    return subprocess.run([VKGATEWAY, *arguments], check=False).returncode


if __name__ == "__main__":
    sys.exit(main())
