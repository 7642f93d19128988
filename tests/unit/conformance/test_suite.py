"""The suite as a program: its arguments, its report, and an exit without a report."""

from __future__ import annotations

from pathlib import Path

import pytest

from vkgateway.api.errors import UnavailableError
from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.outcomes import Outcome
from vkgateway_platform.conformance.suite import Suite, SuiteError

PROGRAM = """#!/bin/sh
echo "$@" >> {calls}
case "$1" in
--list-images) echo example.org/b:1; echo example.org/a:1; exit ;;
--list-conformance-tests) echo '- codename: a case'; exit ;;
esac
{body}
"""
REPORT = """
for word; do case "$word" in --ginkgo.json-report=*) file=${word#*=} ;; esac; done
echo working
echo '[{"SpecReports": [{"ContainerHierarchyTexts": ["a"], "LeafNodeText": "case", "LeafNodeType": "It", \
"State": "passed", "RunTime": 1500000000}]}]' > "$file"
exit 1
"""


def suite(folder: Path, body: str = "exit 1") -> Suite:
    program = folder / "e2e.test"
    program.write_text(PROGRAM.format(calls=folder / "calls", body=body))
    program.chmod(0o755)
    return Suite(program=program, kubectl=folder / "bin" / "kubectl", arguments=("--more",))


async def test_suite_lists_cases_and_images(tmp_path: Path) -> None:
    assert await suite(tmp_path).list_images() == ("example.org/a:1", "example.org/b:1")
    assert [case.name for case in await suite(tmp_path).list_cases()] == ["a case"]


async def test_program_that_lists_nothing_is_an_error(tmp_path: Path) -> None:
    program = tmp_path / "other"
    program.write_text("#!/bin/sh\necho what is that\nexit 3\n")
    program.chmod(0o755)
    with pytest.raises(UnavailableError, match="what is that"):
        await Suite(program=program, kubectl=tmp_path / "kubectl").list_images()


async def test_outcomes_are_read_for_any_exit_code(tmp_path: Path) -> None:
    log = tmp_path / "logs" / "a.log"
    found = await suite(tmp_path, REPORT).run([Case(name="a case")], kubeconfig=tmp_path / "config", log=log)
    assert found == {"a case": Outcome(state="passed", seconds=1.5, log="a.log")}
    assert log.read_text() == "working\n"
    call = (tmp_path / "calls").read_text()
    assert f"--kubeconfig={tmp_path / 'config'} --kubectl-path={tmp_path / 'bin' / 'kubectl'}" in call
    assert "--ginkgo.focus= (a case)$" in call
    assert call.rstrip().endswith("--more")


async def test_missing_report_is_an_error_that_names_the_log(tmp_path: Path) -> None:
    log = tmp_path / "a.log"
    broken = suite(tmp_path, "echo no cluster; exit 2")
    with pytest.raises(SuiteError, match="exited with code 2 and no report: no cluster") as caught:
        await broken.run([Case(name="a case")], kubeconfig=tmp_path / "config", log=log)
    assert str(log) in caught.value.hint
