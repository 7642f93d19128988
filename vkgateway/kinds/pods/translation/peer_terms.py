"""Terms about other pods: affinity, anti-affinity and topology spread, translated for the compute cluster."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vkgateway.api.names import TENANT_LABEL, compute_namespace
from vkgateway.api.objects import Object
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.metadata import label_to_compute, selector_to_compute
from vkgateway.kinds.pods.translation.node_terms import all_match
from vkgateway.kinds.size_budget import SizeBudget

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_MERGED_KEYS: Final = frozenset({"matchLabelKeys", "mismatchLabelKeys"})
"""Fields that name label keys of the pod, by whose values a term of pod affinity also selects."""

NamespaceLabels = Callable[[], Mapping[str, Mapping[str, str]]]
"""Function that returns the labels of a tenant's namespaces by name."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """Translation of a pod's terms about other pods, confined to pods of its tenant."""

    tenant: TenantContext
    namespace_labels: NamespaceLabels
    size_budget: SizeBudget = field(default_factory=SizeBudget)
    """Bound for expanded namespace lists: each term may expand to all namespaces."""

    def forward_affinity_term(self, term: Mapping[str, Any]) -> Object:
        """Return a pod affinity term with compute namespaces.

        Compute namespaces do not carry the tenant's labels. A selector of namespaces by such labels becomes a list of
        the names that it matches now.

        Label keys are not forwarded: the tenant's API server merged them into the selector (KEP-3633). A compute API
        server before 1.31 would drop them, and later ones would merge them a second time.

        Raises:
            OversizeError: the namespace lists are larger than any API server accepts.
        """
        made = {key: value for key, value in term.items() if key not in _MERGED_KEYS} | self._confine_selector(term)
        selector = term.get("namespaceSelector")
        names = list(term.get("namespaces") or ())
        if selector is not None and not _selects_by_name(selector):
            known = set(names)
            names += [name for name in self._selected_namespaces(selector) if name not in known]
            del made["namespaceSelector"]
            if not names:
                made["namespaceSelector"] = self._empty_selector()
        elif selector is not None:
            made["namespaceSelector"] = self._forward_name_selector(selector)
        if names:
            made["namespaces"] = [self._compute_namespace(name) for name in names]
            self.size_budget.charge_size(sum(map(len, made["namespaces"])))
        return made

    def forward_spread(self, constraint: Mapping[str, Any]) -> Object:
        """Return a topology spread constraint that counts this tenant's pods only.

        Since Kubernetes 1.34, API servers merge the label keys into the selector when the pod is created (KEP-3243).
        Merged keys are not forwarded: a compute API server would reject them or merge them a second time. Other keys
        are translated.
        """
        made = {**constraint, **self._confine_selector(constraint)}
        keys = made.pop("matchLabelKeys", None)
        if keys:
            expressions = (constraint.get("labelSelector") or {}).get("matchExpressions") or ()
            merged = {entry["key"] for entry in expressions}
            tenant_only = self.tenant.tenant_only_prefixes
            made["matchLabelKeys"] = [label_to_compute(key, tenant_only) for key in keys if key not in merged]
        return made

    def _confine_selector(self, term: Mapping[str, Any]) -> Object:
        """Return the term's label selector, confined to the tenant. A term without one matches nothing and is kept."""
        selector = term.get("labelSelector")
        if selector is None:
            return {}
        translated = selector_to_compute(selector, self.tenant.tenant_only_prefixes)
        ours = {**(translated.get("matchLabels") or {}), TENANT_LABEL: self.tenant.name}
        return {"labelSelector": {**translated, "matchLabels": ours}}

    def _selected_namespaces(self, selector: Mapping[str, Any]) -> list[str]:
        exact = (selector.get("matchLabels") or {}).items()
        wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in exact]
        wanted += selector.get("matchExpressions") or ()
        return sorted(matching_namespaces(wanted, self.namespace_labels(), self.size_budget))

    def _empty_selector(self) -> Object:
        """Return a selector that matches no namespace.

        Without a selector, a term would apply to the pod's namespace.
        """
        return {
            "matchLabels": {TENANT_LABEL: self.tenant.name},
            "matchExpressions": [{"key": TENANT_LABEL, "operator": "DoesNotExist"}],
        }

    def _forward_name_selector(self, selector: Mapping[str, Any]) -> Object:
        labels = dict(selector.get("matchLabels") or {})
        if NAMESPACE_NAME_LABEL in labels:
            labels[NAMESPACE_NAME_LABEL] = self._compute_namespace(labels[NAMESPACE_NAME_LABEL])
        made: Object = {**selector, "matchLabels": {**labels, TENANT_LABEL: self.tenant.name}}
        if selector.get("matchExpressions"):
            made["matchExpressions"] = [
                {**entry, "values": [self._compute_namespace(name) for name in entry["values"]]}
                if entry.get("values")
                else {**entry}
                for entry in selector["matchExpressions"]
            ]
        return made

    def _compute_namespace(self, namespace: str) -> str:
        return compute_namespace(self.tenant.name, namespace)


def _selects_by_name(selector: Mapping[str, Any]) -> bool:
    """Return whether a namespace selector only refers to names."""
    keys = [*(selector.get("matchLabels") or ())]
    keys += [entry["key"] for entry in selector.get("matchExpressions") or ()]
    return all(key == NAMESPACE_NAME_LABEL for key in keys)


def matching_namespaces(
    wanted: Sequence[Mapping[str, Any]], namespaces: Mapping[str, Mapping[str, str]], budget: SizeBudget
) -> list[str]:
    """Return the names of the namespaces that meet all requirements.

    `namespaces` holds labels by name.

    Raises:
        OversizeError: the comparisons exceed the budget.
    """
    budget.charge_size(lookups=len(wanted) * len(namespaces))
    return [name for name, labels in namespaces.items() if all_match({NAMESPACE_NAME_LABEL: name, **labels}, wanted)]
