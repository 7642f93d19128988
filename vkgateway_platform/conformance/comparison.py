"""Comparison of a tenant with the compute cluster: which cases pass on both or on one, and the known causes."""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from importlib import resources
from typing import Literal

import msgspec
import yaml

from vkgateway_platform.conformance.cases import Case
from vkgateway_platform.conformance.outcomes import Outcome, Record

Verdict = Literal["both", "baseline", "tenant", "neither", "open"]
"""Where a case passes: in both clusters, in the compute cluster only (the baseline), in the tenant only, in
neither. Open: the case was not run in both.
"""

Cause = Literal["design", "missing", "machine", "unknown"]
"""Why a case fails: by design, not implemented yet, this machine's fault, or unknown."""

REASONS_FILE = "reasons.yaml"


class KnownReason(msgspec.Struct, frozen=True, kw_only=True):
    """A known cause of failures, with its cases."""

    cause: Cause
    text: str
    cases: tuple[str, ...]
    """Regular expressions; a case matches if one is found in its name."""

    def is_match(self, name: str) -> bool:
        """Return whether this is the cause of a case's failure."""
        return any(re.search(pattern, name) for pattern in self.cases)


class ComparedCase(msgspec.Struct, frozen=True, kw_only=True, rename="camel", omit_defaults=True):
    """One case in both clusters."""

    name: str
    verdict: Verdict
    cause: Cause | None = None
    reason: str = ""
    tenant: Outcome | None = None
    baseline: Outcome | None = None


class Comparison(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """All cases in both clusters, and totals."""

    tenant: str
    kubernetes_version: str
    cases: tuple[ComparedCase, ...]

    def cases_with(self, verdict: Verdict) -> tuple[ComparedCase, ...]:
        return tuple(case for case in self.cases if case.verdict == verdict)

    @property
    def pass_ratio(self) -> float:
        """Return the share of the compute cluster's passing cases that pass in the tenant: 0 to 1; 1 if none passes
        there.
        """
        both, baseline_only = len(self.cases_with("both")), len(self.cases_with("baseline"))
        return both / (both + baseline_only) if both + baseline_only else 1.0


def load_reasons() -> tuple[KnownReason, ...]:
    """Return the known causes of failures; the first match counts."""
    text = resources.files("vkgateway_platform.conformance").joinpath(REASONS_FILE).read_text(encoding="utf-8")
    return msgspec.convert(yaml.safe_load(text), tuple[KnownReason, ...])


def compare_records(
    cases: Iterable[Case], *, tenant: Record, baseline: Record | None, known: Sequence[KnownReason] = ()
) -> Comparison:
    """Compare a tenant with the compute cluster."""
    rows = (
        _compare_case(
            case.name,
            tenant.outcomes.get(case.name),
            baseline.outcomes.get(case.name) if baseline else None,
            known=known,
        )
        for case in cases
    )
    return Comparison(tenant=tenant.cluster, kubernetes_version=tenant.kubernetes_version, cases=tuple(rows))


def _compare_case(
    name: str, tenant: Outcome | None, baseline: Outcome | None, *, known: Sequence[KnownReason]
) -> ComparedCase:
    verdict = _case_verdict(tenant, baseline)
    known_reason = None
    if verdict in {"baseline", "neither"}:
        known_reason = next((reason for reason in known if reason.is_match(name)), None)
    return ComparedCase(
        name=name,
        verdict=verdict,
        cause=(known_reason.cause if known_reason else "unknown") if verdict in {"baseline", "neither"} else None,
        reason=known_reason.text if known_reason else "",
        tenant=tenant,
        baseline=baseline,
    )


def _case_verdict(tenant: Outcome | None, baseline: Outcome | None) -> Verdict:
    if tenant is None or baseline is None:
        return "open"
    passed = (tenant.state == "passed", baseline.state == "passed")
    verdicts: dict[tuple[bool, bool], Verdict] = {
        (True, True): "both",
        (False, True): "baseline",
        (True, False): "tenant",
        (False, False): "neither",
    }
    return verdicts[passed]
