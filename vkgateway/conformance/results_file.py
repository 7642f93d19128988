"""Results of all cases of both clusters in one file, from which a run on another machine continues."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import msgspec

from vkgateway.conformance import outcomes
from vkgateway.conformance.comparison import Comparison
from vkgateway.conformance.outcomes import Outcome, Record
from vkgateway.controlplane.atomic_files import write_file
from vkgateway.model.errors import InputError


def write_results(path: Path, found: Comparison, *, baseline: str) -> None:
    """Write the results of both clusters; `baseline` is the name of the compute cluster's record."""
    clusters = {
        baseline: {case.name: case.baseline for case in found.cases if case.baseline},
        found.tenant: {case.name: case.tenant for case in found.cases if case.tenant},
    }
    records = [_to_record(name, cases, found.kubernetes_version) for name, cases in clusters.items()]
    write_file(path, msgspec.json.format(msgspec.json.encode(records), indent=1) + b"\n")


def _to_record(name: str, cases: Mapping[str, Outcome], version: str) -> Record:
    """Return the record without logs, which exist on this machine only."""
    sorted_cases = {case: msgspec.structs.replace(outcome, log="") for case, outcome in sorted(cases.items())}
    return Record(cluster=name, kubernetes_version=version, outcomes=sorted_cases)


def import_results(path: Path, files: Mapping[str, Path]) -> None:
    """Import results: write the record of each cluster into its file.

    Raises:
        InputError: there are local results already, or the file is missing, damaged or of other clusters.
    """
    if existing := [str(file) for file in files.values() if file.exists()]:
        raise InputError(
            "there are results of an earlier run", hint=f"To start from {path}, delete {' and '.join(existing)}."
        )
    try:
        records = {record.cluster: record for record in msgspec.json.decode(path.read_bytes(), type=list[Record])}
    except (OSError, msgspec.DecodeError) as error:
        raise InputError(f"{path} cannot be read: {error}") from error
    if lacking := files.keys() - records.keys():
        raise InputError(f"{path} has no results for {' and '.join(sorted(lacking))}")
    for name, file in files.items():
        outcomes.save_record(file, records[name])
