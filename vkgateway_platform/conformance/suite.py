"""The suite as a program: its lists, and a run of some cases against a cluster."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from vkgateway.api.errors import UnavailableError, VkgatewayError
from vkgateway_platform.binaries.subprocesses import run_program
from vkgateway_platform.conformance import cases as case_lists
from vkgateway_platform.conformance import outcomes
from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.outcomes import Outcome

CASE_MINUTES = 25
"""Time limit per case; the suite's own timeouts are lower."""


class SuiteError(VkgatewayError):
    """The suite exited without a report."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Suite:
    """The suite's program, and its arguments for every cluster."""

    program: Path
    kubectl: Path
    arguments: tuple[str, ...] = ()
    """Additional flags of the suite, from the user."""

    async def list_cases(self) -> tuple[Case, ...]:
        """Return all conformance cases of its release.

        Raises:
            UnavailableError: the program lists none.
        """
        return case_lists.parse_cases(await self._query_program("--list-conformance-tests"))

    async def list_images(self) -> tuple[str, ...]:
        """Return its images by name and tag."""
        return tuple(sorted((await self._query_program("--list-images")).split()))

    async def run(self, cases: Sequence[Case], *, kubeconfig: Path, log: Path) -> dict[str, Outcome]:
        """Run cases one by one and return the outcome of each; the suite's output goes to `log`.

        Raises:
            SuiteError: the suite exited without a report.
        """
        with tempfile.TemporaryDirectory(prefix="vkg-conformance-") as folder:
            report = Path(folder) / "report.json"
            argv = self._build_command(cases, kubeconfig=kubeconfig, report=report, folder=Path(folder))
            log.parent.mkdir(parents=True, exist_ok=True)
            code, lines = await run_program(argv, env=self._build_environment(folder), cwd=Path(folder), log=log)
            if not report.exists():
                last = next((line for line in reversed(lines) if line.strip()), "it said nothing")
                raise SuiteError(f"the suite exited with code {code} and no report: {last}", hint=f"See {log}.")
            return outcomes.parse_report(report.read_bytes(), names={case.name for case in cases}, log=log.name)

    def _build_command(self, cases: Sequence[Case], *, kubeconfig: Path, report: Path, folder: Path) -> list[str]:
        return [
            str(self.program),
            f"--kubeconfig={kubeconfig}",
            f"--kubectl-path={self.kubectl}",
            "--provider=skeleton",
            "--disable-log-dump",
            f"--e2e-output-dir={folder}",
            f"--ginkgo.focus={case_lists.focus_pattern(cases)}",
            f"--ginkgo.json-report={report}",
            f"--ginkgo.timeout={CASE_MINUTES * len(cases)}m",
            "--ginkgo.no-color",
            "--ginkgo.v",
            "--ginkgo.silence-skips",
            *self.arguments,
        ]

    def _build_environment(self, folder: str) -> Mapping[str, str]:
        """Return the user's environment without its cluster settings."""
        kept = {name: value for name, value in os.environ.items() if name != "KUBECONFIG"}
        return {**kept, "TMPDIR": folder, "PATH": f"{self.kubectl.parent}:{kept.get('PATH', os.defpath)}"}

    async def _query_program(self, flag: str) -> str:
        """Return the program's output for a flag, read from a file: `run_program` keeps less than the list has."""
        with tempfile.TemporaryDirectory(prefix="vkg-conformance-") as folder:
            log = Path(folder) / "answer"
            code, lines = await run_program([str(self.program), flag], env=dict(os.environ), cwd=Path(folder), log=log)
            if code != 0:
                raise UnavailableError(f"{self.program} {flag} fails: {lines[-1] if lines else f'exit code {code}'}")
            return log.read_text(encoding="utf-8")
