"""Terms about other pods: which a pod means to be near to, away from or spread among, as they stand below."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vkgateway.model.names import TENANT_LABEL, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.translate.context import TenantContext
from vkgateway.translate.labels import label_to_compute, selector_to_compute
from vkgateway.translate.node_terms import all_match
from vkgateway.translate.size_budget import SizeBudget

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_MERGED_KEYS: Final = frozenset({"matchLabelKeys", "mismatchLabelKeys"})
"""Keys of labels of the pod itself, by which a term of pod affinity selects, too."""

NamespaceLabels = Callable[[], Mapping[str, Mapping[str, str]]]
"""Tells the labels of a tenant's namespaces by name."""


@dataclass(frozen=True, slots=True)
class PeerTerms:
    """Rewrites the terms of one pod so that they see its tenant's pods only."""

    tenant: TenantContext
    namespace_labels: NamespaceLabels
    size_budget: SizeBudget = field(default_factory=SizeBudget)
    """For namespaces that are written out: each term may mean all of them."""

    def forward_affinity_term(self, term: Mapping[str, Any]) -> Object:
        """A pod affinity term, its namespaces named as they are below. Raises OversizeError.

        Compute namespaces carry none of the tenant's labels. A selector of namespaces by such labels goes down as
        the names of those that it means now.

        Label keys stay above: the tenant's API server has merged them into the selector (KEP-3633), while a compute
        API server before 1.31 would forget them, and later ones would merge them a second time.
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
        """A topology spread constraint that counts this tenant's pods only.

        From 1.34 on API servers merge its label keys into the selector when the pod is created (KEP-3243). Such a key
        stays above, since a compute API server would refuse it or merge it a second time. Keys that were not merged are
        translated.
        """
        made = {**constraint, **self._confine_selector(constraint)}
        keys = made.pop("matchLabelKeys", None)
        if keys:
            expressions = (constraint.get("labelSelector") or {}).get("matchExpressions") or ()
            merged = {entry["key"] for entry in expressions}
            staying = self.tenant.tenant_only_prefixes
            made["matchLabelKeys"] = [label_to_compute(key, staying) for key in keys if key not in merged]
        return made

    def _confine_selector(self, term: Mapping[str, Any]) -> Object:
        """The term's label selector, narrowed to the tenant; without one the term matches nothing, and stays so."""
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
        """A selector that no namespace meets; without any, a term would mean the pod's own."""
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
    """Whether a selector of namespaces looks at nothing but their names."""
    keys = [*(selector.get("matchLabels") or ())]
    keys += [entry["key"] for entry in selector.get("matchExpressions") or ()]
    return all(key == NAMESPACE_NAME_LABEL for key in keys)


def matching_namespaces(
    wanted: Sequence[Mapping[str, Any]], namespaces: Mapping[str, Mapping[str, str]], budget: SizeBudget
) -> list[str]:
    """Names of the tenant's namespaces, given with their labels, for which all requirements hold.

    Raises OversizeError.
    """
    budget.charge_size(looks=len(wanted) * len(namespaces))
    return [name for name, labels in namespaces.items() if all_match({NAMESPACE_NAME_LABEL: name, **labels}, wanted)]
