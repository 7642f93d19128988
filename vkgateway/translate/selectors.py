"""Node selectors and node affinity: what the tenant's scheduler has used up, and what the compute scheduler keeps."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from vkgateway.model.objects import Object
from vkgateway.translate.context import VIRTUAL_KEYS, PoolContext

Verdict = Literal["true", "false", "keep"]
"""A requirement seen from above: holds on the virtual node, fails on it, or is left to the compute scheduler."""

_REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
_PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NEGATIVE: Final = frozenset({"NotIn", "DoesNotExist"})


class NodeTerms:
    """Judges a pod's node terms against the virtual node that it is bound to.

    A term on a label of the virtual node itself, or of the pool's selector, is judged here. A term on a label that
    real nodes of the pool carry goes down. Any other label can only be the tenant's own, put on its virtual node: if
    the tenant's scheduler placed the pod, the term is used up; if somebody set `nodeName` by hand, it goes down,
    where no node meets it and the pod waits with a message that says so.
    """

    def __init__(self, pool: PoolContext, *, scheduled: bool) -> None:
        self._pool = pool
        self._scheduled = scheduled
        self._labels = pool.virtual_labels()

    def selector(self, wanted: Mapping[str, str] | None) -> dict[str, str]:
        """The compute pod's nodeSelector: the pool's, and of the tenant's what is not used up."""
        if not wanted:
            return self._pool.node_selector
        kept = {key: value for key, value in wanted.items() if self._judge(key, "In", (value,)) == "keep"}
        return {**kept, **self._pool.node_selector}

    def affinity(self, node_affinity: Mapping[str, Any] | None) -> Object:
        """The compute pod's nodeAffinity; empty if nothing is left of it."""
        if not node_affinity:
            return {}
        left = {key: value for key, value in node_affinity.items() if key not in (_REQUIRED, _PREFERRED)}
        required = node_affinity.get(_REQUIRED)
        if required:
            terms, satisfied = self._required(required.get("nodeSelectorTerms") or ())
            if terms and not satisfied:
                left[_REQUIRED] = {**required, "nodeSelectorTerms": terms}
        preferred = [kept for term in node_affinity.get(_PREFERRED) or () if (kept := self._preference(term))]
        if preferred:
            left[_PREFERRED] = preferred
        return left

    def contradiction(self, spec: Mapping[str, Any]) -> tuple[str, str] | None:
        """Field and value of a required term that the virtual node can never meet, or None."""
        for key, value in (spec.get("nodeSelector") or {}).items():
            if self._judge(key, "In", (value,)) == "false":
                return f"spec.nodeSelector[{key}]", str(value)
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(_REQUIRED)
        if required:
            terms, satisfied = self._required(required.get("nodeSelectorTerms") or ())
            if not terms and not satisfied:
                return f"spec.affinity.nodeAffinity.{_REQUIRED}", self._pool.node_name
        return None

    def _required(self, terms: Sequence[Mapping[str, Any]]) -> tuple[list[Object], bool]:
        """Of alternative terms, those that may still hold below, and whether one holds whatever is below."""
        left: list[Object] = []
        for term in terms:
            verdict, kept = self._term(term)
            if verdict == "true":
                return [], True
            if verdict == "keep":
                left.append(kept)
        return left, False

    def _term(self, term: Mapping[str, Any]) -> tuple[Verdict, Object]:
        if not term.get("matchExpressions") and not term.get("matchFields"):
            return "false", {}
        kept = []
        for requirement in term.get("matchFields") or ():
            if not _holds({"metadata.name": self._pool.node_name}, requirement):
                return "false", {}
        for requirement in term.get("matchExpressions") or ():
            verdict = self._judge(requirement["key"], requirement["operator"], requirement.get("values") or ())
            if verdict == "false":
                return "false", {}
            if verdict == "keep":
                kept.append(requirement)
        return ("keep", {"matchExpressions": kept}) if kept else ("true", {})

    def _judge(self, key: str, operator: str, values: Sequence[str]) -> Verdict:
        requirement = {"key": key, "operator": operator, "values": values}
        if key in VIRTUAL_KEYS or key in self._pool.node_selector:
            return "true" if _holds(self._labels, requirement) else "false"
        if self._pool.carries(key) or operator in _NEGATIVE:
            return "keep"
        return "true" if self._scheduled or _holds(self._labels, requirement) else "keep"

    def _preference(self, weighted: Mapping[str, Any]) -> Object | None:
        """A preferred term without what is the same for all of the pool, or None if it prefers nothing there."""
        preference = weighted.get("preference") or {}
        fields = preference.get("matchFields") or ()
        expressions = preference.get("matchExpressions") or ()
        known = [entry for entry in expressions if self._is_known(entry["key"])]
        name = {"metadata.name": self._pool.node_name}
        if not (_all_hold(name, fields) and _all_hold(self._labels, known)):
            return None
        kept = [entry for entry in expressions if not self._is_known(entry["key"])]
        return {**weighted, "preference": {"matchExpressions": kept}} if kept else None

    def _is_known(self, key: str) -> bool:
        return key in VIRTUAL_KEYS or key in self._pool.node_selector


def _all_hold(labels: Mapping[str, str], requirements: Iterable[Mapping[str, Any]]) -> bool:
    return all(_holds(labels, requirement) for requirement in requirements)


def _holds(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    """Judge a node selector requirement as the scheduler does (core/v1 NodeSelectorRequirement)."""
    value = labels.get(requirement["key"])
    operator: str = requirement["operator"]
    values: Sequence[str] = requirement.get("values") or ()
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    return _compares(value, operator, values)


def _compares(value: str | None, operator: str, values: Sequence[str]) -> bool:
    try:
        actual, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return actual > bound if operator == "Gt" else operator == "Lt" and actual < bound
