"""Results in one file, from which another machine continues."""

from __future__ import annotations

import runpy
from pathlib import Path

import pytest

from vkgateway.api.errors import InputError
from vkgateway_platform.conformance import outcomes
from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.comparison import compare_records
from vkgateway_platform.conformance.outcomes import Outcome, Record

script = runpy.run_path(str(Path(__file__).parents[3] / "scripts/conformance_page.py"))
import_results, write_results = script["import_results"], script["write_results"]
CASES = [Case(name="case b"), Case(name="case a"), Case(name="case c")]


def record(name: str, **cases: Outcome) -> Record:
    found = {f"case {letter}": outcome for letter, outcome in cases.items()}
    return Record(cluster=name, kubernetes_version="1.36.3", outcomes=found)


@pytest.fixture
def written(tmp_path: Path) -> Path:
    tenant = record("alpha", b=Outcome(state="passed", runs=3, failures=1, log="b.log"), a=Outcome(state="failed"))
    baseline = record("straight", a=Outcome(state="passed", seconds=2.5))
    path = tmp_path / "known.json"
    write_results(path, compare_records(CASES, tenant=tenant, baseline=baseline), baseline="straight")
    return path


def files(folder: Path) -> dict[str, Path]:
    return {name: folder / name / "outcomes.json" for name in ("straight", "alpha")}


def test_results_are_imported_on_another_machine(written: Path, tmp_path: Path) -> None:
    import_results(written, files(tmp_path))
    alpha = outcomes.load_record(files(tmp_path)["alpha"])
    assert alpha == record("alpha", a=Outcome(state="failed"), b=Outcome(state="passed", runs=3, failures=1))
    baseline = outcomes.load_record(files(tmp_path)["straight"])
    assert baseline == record("straight", a=Outcome(state="passed", seconds=2.5))


def test_import_does_not_overwrite_local_results(written: Path, tmp_path: Path) -> None:
    existing = files(tmp_path)["alpha"]
    outcomes.save_record(existing, record("alpha"))
    with pytest.raises(InputError, match="results of an earlier run") as caught:
        import_results(written, files(tmp_path))
    assert caught.value.hint is not None
    assert str(existing) in caught.value.hint
    assert outcomes.load_record(existing) == record("alpha")
    assert not files(tmp_path)["straight"].exists()


@pytest.mark.parametrize(
    ("text", "why"),
    [("[", "cannot be read"), ("[]", "no results for alpha and straight"), ('{"alpha": {}}', "cannot be read")],
)
def test_file_without_results_is_refused(text: str, why: str, tmp_path: Path) -> None:
    path = tmp_path / "known.json"
    path.write_text(text)
    with pytest.raises(InputError, match=why):
        import_results(path, files(tmp_path))
    with pytest.raises(InputError, match="cannot be read"):
        import_results(tmp_path / "none", files(tmp_path))
    assert not any(file.exists() for file in files(tmp_path).values())
