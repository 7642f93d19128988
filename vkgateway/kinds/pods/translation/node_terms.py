"""Node selectors and node affinity: terms that the tenant's scheduler evaluated, and terms that are forwarded."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, Literal

from vkgateway.api.names import is_reserved
from vkgateway.api.objects import Object
from vkgateway.kinds.context import VIRTUAL_NODE_LABELS, PoolContext

Verdict = Literal["true", "false", "keep"]
"""Verdict on a requirement: met by the virtual node, not met by it, or left to the compute scheduler."""

REQUIRED: Final = "requiredDuringSchedulingIgnoredDuringExecution"
PREFERRED: Final = "preferredDuringSchedulingIgnoredDuringExecution"
_NEGATIVE: Final = frozenset({"NotIn", "DoesNotExist"})


class NodeTerms:
    """Translation of a pod's node terms for the virtual node to which it is bound.

    A term on a label of the virtual node or of the pool's selector is evaluated here. A term on a label that real nodes
    of the pool carry is forwarded. Any other label can only be one that the tenant set on its virtual node. If the
    tenant's scheduler bound the pod, such a term is dropped. If `nodeName` was set directly, the term is forwarded: no
    node meets it, and the pod waits with a message about it.
    """

    def __init__(self, pool: PoolContext, *, scheduled: bool) -> None:
        self._pool = pool
        self._scheduled = scheduled
        self._labels = pool.virtual_labels()

    def forward_selector(self, wanted: Mapping[str, str] | None) -> dict[str, str]:
        """Return the compute pod's nodeSelector: the pool's, and the tenant's terms that are forwarded."""
        if not wanted:
            return self._pool.node_selector
        kept = {key: value for key, value in wanted.items() if self._judge_requirement(key, "In", (value,)) == "keep"}
        return {**kept, **self._pool.node_selector}

    def forward_affinity(self, node_affinity: Mapping[str, Any] | None) -> Object:
        """Return the compute pod's nodeAffinity, empty if no term is left."""
        if not node_affinity:
            return {}
        left = {key: value for key, value in node_affinity.items() if key not in (REQUIRED, PREFERRED)}
        required = node_affinity.get(REQUIRED)
        if required:
            terms, satisfied = self._required_terms(required.get("nodeSelectorTerms") or ())
            if terms and not satisfied:
                left[REQUIRED] = {**required, "nodeSelectorTerms": terms}
        preferred = [kept for term in node_affinity.get(PREFERRED) or () if (kept := self._forward_preference(term))]
        if preferred:
            left[PREFERRED] = preferred
        return left

    def find_conflict(self, spec: Mapping[str, Any]) -> tuple[str, str] | None:
        """Return field and value of a required term that the virtual node can never meet, or None."""
        for key, value in (spec.get("nodeSelector") or {}).items():
            if self._judge_requirement(key, "In", (value,)) == "false":
                return f"spec.nodeSelector[{key}]", str(value)
        required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED)
        if required:
            terms, satisfied = self._required_terms(required.get("nodeSelectorTerms") or ())
            if not terms and not satisfied:
                return f"spec.affinity.nodeAffinity.{REQUIRED}", self._pool.node_name
        return None

    def _required_terms(self, terms: Sequence[Mapping[str, Any]]) -> tuple[list[Object], bool]:
        """Return the alternative terms that compute nodes may meet, and whether one is met on every node."""
        left: list[Object] = []
        for term in terms:
            verdict, kept = self._judge_term(term)
            if verdict == "true":
                return [], True
            if verdict == "keep":
                left.append(kept)
        return left, False

    def _judge_term(self, term: Mapping[str, Any]) -> tuple[Verdict, Object]:
        if not term.get("matchExpressions") and not term.get("matchFields"):
            return "false", {}
        kept = []
        for requirement in term.get("matchFields") or ():
            if not _requirement_matches({"metadata.name": self._pool.node_name}, requirement):
                return "false", {}
        for requirement in term.get("matchExpressions") or ():
            verdict = self._judge_requirement(
                requirement["key"], requirement["operator"], requirement.get("values") or ()
            )
            if verdict == "false":
                return "false", {}
            if verdict == "keep":
                kept.append(requirement)
        return ("keep", {"matchExpressions": kept}) if kept else ("true", {})

    def _judge_requirement(self, key: str, operator: str, values: Sequence[str]) -> Verdict:
        requirement = {"key": key, "operator": operator, "values": values}
        if key in VIRTUAL_NODE_LABELS or key in self._pool.node_selector:
            return "true" if _requirement_matches(self._labels, requirement) else "false"
        if self._pool.has_label(key) or operator in _NEGATIVE:
            return "keep"
        return "true" if self._scheduled or _requirement_matches(self._labels, requirement) else "keep"

    def _forward_preference(self, weighted: Mapping[str, Any]) -> Object | None:
        """Return a preferred term without parts that are equal for the whole pool, or None if nothing is left."""
        preference = weighted.get("preference") or {}
        fields = preference.get("matchFields") or ()
        expressions = preference.get("matchExpressions") or ()
        known = [entry for entry in expressions if self._is_pool_key(entry["key"])]
        name = {"metadata.name": self._pool.node_name}
        if not (all_match(name, fields) and all_match(self._labels, known)):
            return None
        kept = [entry for entry in expressions if not self._is_pool_key(entry["key"])]
        return {**weighted, "preference": {"matchExpressions": kept}} if kept else None

    def _is_pool_key(self, key: str) -> bool:
        return key in VIRTUAL_NODE_LABELS or key in self._pool.node_selector


def real_node_terms(
    spec: Mapping[str, Any], *, carried: frozenset[str], scheduled: bool, nodes: Mapping[str, Mapping[str, str]]
) -> list[list[Object]]:
    """Return a pod's requirements on real nodes in any pool: alternatives of requirements, or an empty list.

    The result is what `NodeTerms` keeps of node selector and required node affinity, as far as it is known without the
    pool. `carried` are the labels that real nodes of any pool carry, `nodes` the labels of the candidate virtual nodes
    by name. An alternative that no virtual node meets is left out. An alternative that names its virtual node counts
    for all of them.
    """
    judged = _RealTerms(carried, scheduled, nodes)
    chosen: list[Object] = [
        {"key": key, "operator": "In", "values": [value]} for key, value in (spec.get("nodeSelector") or {}).items()
    ]
    always = judged.kept_requirements(chosen)
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(REQUIRED) or {}
    alternatives = [
        [*always, *judged.kept_requirements(term.get("matchExpressions") or ())]
        for term in required.get("nodeSelectorTerms") or ()
        if judged.is_possible(term)
    ]
    if not alternatives or always in alternatives:
        return [always] if always else []
    return alternatives


class _RealTerms:
    def __init__(self, carried: frozenset[str], scheduled: bool, nodes: Mapping[str, Mapping[str, str]]) -> None:
        self._carried = carried
        self._scheduled = scheduled
        self._nodes = nodes

    def is_possible(self, term: Mapping[str, Any]) -> bool:
        fields, expressions = term.get("matchFields") or (), term.get("matchExpressions") or ()
        if not fields and not expressions:
            return False
        virtual = [entry for entry in expressions if entry["key"] in VIRTUAL_NODE_LABELS]
        return not self._nodes or any(
            all_match({"metadata.name": name}, fields) and all_match(labels, virtual)
            for name, labels in self._nodes.items()
        )

    def kept_requirements(self, requirements: Iterable[Mapping[str, Any]]) -> list[Object]:
        return [dict(entry) for entry in requirements if self._is_kept(entry["key"], entry["operator"])]

    def _is_kept(self, key: str, operator: str) -> bool:
        """Return whether a requirement is forwarded.

        Reserved labels are the pools' selectors. See `NodeTerms` for the rest.
        """
        if key in VIRTUAL_NODE_LABELS or is_reserved(key):
            return False
        return key in self._carried or operator in _NEGATIVE or not self._scheduled


def term_matches(term: Mapping[str, Any], *, name: str, labels: Mapping[str, str]) -> bool:
    """Return whether a node selector term matches a node, as the scheduler decides. An empty term matches nothing."""
    fields, expressions = term.get("matchFields") or (), term.get("matchExpressions") or ()
    if not fields and not expressions:
        return False
    return all_match({"metadata.name": name}, fields) and all_match(labels, expressions)


def all_match(labels: Mapping[str, str], requirements: Iterable[Mapping[str, Any]]) -> bool:
    """Return whether labels meet all requirements of a node selector or a label selector."""
    return all(_requirement_matches(labels, requirement) for requirement in requirements)


def _requirement_matches(labels: Mapping[str, str], requirement: Mapping[str, Any]) -> bool:
    """Return whether labels meet a node selector requirement, as the scheduler decides (core/v1
    NodeSelectorRequirement).
    """
    value = labels.get(requirement["key"])
    operator: str = requirement["operator"]
    values: Sequence[str] = requirement.get("values") or ()
    if operator == "In":
        return value in values
    if operator == "NotIn":
        return value not in values
    if operator in ("Exists", "DoesNotExist"):
        return (value is not None) == (operator == "Exists")
    return compare_numbers(value, operator, values)


def compare_numbers(value: str | None, operator: str, values: Sequence[str]) -> bool:
    """Return whether `value` is greater (Gt) or less (Lt) than the first of `values`. Any other operator is False."""
    try:
        actual, bound = int(value or ""), int(values[0])
    except (ValueError, IndexError):
        return False
    return actual > bound if operator == "Gt" else operator == "Lt" and actual < bound
