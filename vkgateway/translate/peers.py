"""Terms about other pods: which a pod means to be near to, away from or spread among, as they stand below."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from vkgateway.model.names import TENANT_LABEL, compute_namespace
from vkgateway.model.objects import Object
from vkgateway.translate.budget import Budget
from vkgateway.translate.context import TenantContext
from vkgateway.translate.labels import label_below, selector_below
from vkgateway.translate.selectors import all_hold

NAMESPACE_NAME_LABEL: Final = "kubernetes.io/metadata.name"

_MERGED: Final = frozenset({"matchLabelKeys", "mismatchLabelKeys"})
"""Keys of labels of the pod itself, by which a term of pod affinity selects, too."""

NamespaceLabels = Callable[[], Mapping[str, Mapping[str, str]]]
"""Tells the labels of a tenant's namespaces by name."""


@dataclass(frozen=True, slots=True)
class Peers:
    """Rewrites the terms of one pod so that they see its tenant's pods only."""

    tenant: TenantContext
    namespaces: NamespaceLabels
    budget: Budget = field(default_factory=Budget)
    """For namespaces that are written out: each term may mean all of them."""

    def affinity_term(self, term: Mapping[str, Any]) -> Object:
        """A pod affinity term, its namespaces named as they are below. Raises OversizeError.

        Compute namespaces carry none of the tenant's labels. A selector of namespaces by such labels goes down as
        the names of those that it means now.

        Label keys stay above: the tenant's API server has merged them into the selector (KEP-3633), while a compute
        API server before 1.31 would forget them, and later ones would merge them a second time.
        """
        made = {key: value for key, value in term.items() if key not in _MERGED} | self._confined_selector(term)
        selector = term.get("namespaceSelector")
        names = list(term.get("namespaces") or ())
        if selector is not None and not _by_name_only(selector):
            known = set(names)
            names += [name for name in self._selected(selector) if name not in known]
            del made["namespaceSelector"]
            if not names:
                made["namespaceSelector"] = self._nothing()
        elif selector is not None:
            made["namespaceSelector"] = self._by_name(selector)
        if names:
            made["namespaces"] = [self._below(name) for name in names]
            self.budget.spend(sum(map(len, made["namespaces"])))
        return made

    def spread(self, constraint: Mapping[str, Any]) -> Object:
        """A topology spread constraint that counts this tenant's pods only.

        From 1.34 on API servers merge its label keys into the selector when the pod is created (KEP-3243). Such a key
        stays above, since a compute API server would refuse it or merge it a second time. Keys that were not merged are
        translated.
        """
        made = {**constraint, **self._confined_selector(constraint)}
        keys = made.pop("matchLabelKeys", None)
        if keys:
            expressions = (constraint.get("labelSelector") or {}).get("matchExpressions") or ()
            merged = {entry["key"] for entry in expressions}
            staying = self.tenant.staying_prefixes
            made["matchLabelKeys"] = [label_below(key, staying) for key in keys if key not in merged]
        return made

    def _confined_selector(self, term: Mapping[str, Any]) -> Object:
        """The term's label selector, narrowed to the tenant; without one the term matches nothing, and stays so."""
        selector = term.get("labelSelector")
        if selector is None:
            return {}
        translated = selector_below(selector, self.tenant.staying_prefixes)
        ours = {**(translated.get("matchLabels") or {}), TENANT_LABEL: self.tenant.name}
        return {"labelSelector": {**translated, "matchLabels": ours}}

    def _selected(self, selector: Mapping[str, Any]) -> list[str]:
        exact = (selector.get("matchLabels") or {}).items()
        wanted = [{"key": key, "operator": "In", "values": [value]} for key, value in exact]
        wanted += selector.get("matchExpressions") or ()
        return sorted(meant_namespaces(wanted, self.namespaces(), self.budget))

    def _nothing(self) -> Object:
        """A selector that no namespace meets; without any, a term would mean the pod's own."""
        return {
            "matchLabels": {TENANT_LABEL: self.tenant.name},
            "matchExpressions": [{"key": TENANT_LABEL, "operator": "DoesNotExist"}],
        }

    def _by_name(self, selector: Mapping[str, Any]) -> Object:
        labels = dict(selector.get("matchLabels") or {})
        if NAMESPACE_NAME_LABEL in labels:
            labels[NAMESPACE_NAME_LABEL] = self._below(labels[NAMESPACE_NAME_LABEL])
        made: Object = {**selector, "matchLabels": {**labels, TENANT_LABEL: self.tenant.name}}
        if selector.get("matchExpressions"):
            made["matchExpressions"] = [
                {**entry, "values": [self._below(name) for name in entry["values"]]}
                if entry.get("values")
                else {**entry}
                for entry in selector["matchExpressions"]
            ]
        return made

    def _below(self, namespace: str) -> str:
        return compute_namespace(self.tenant.name, namespace)


def _by_name_only(selector: Mapping[str, Any]) -> bool:
    """Whether a selector of namespaces looks at nothing but their names."""
    keys = [*(selector.get("matchLabels") or ())]
    keys += [entry["key"] for entry in selector.get("matchExpressions") or ()]
    return all(key == NAMESPACE_NAME_LABEL for key in keys)


def meant_namespaces(
    wanted: Sequence[Mapping[str, Any]], namespaces: Mapping[str, Mapping[str, str]], budget: Budget
) -> list[str]:
    """Names of the tenant's namespaces, given with their labels, for which all requirements hold.

    Raises OversizeError.
    """
    budget.spend(looks=len(wanted) * len(namespaces))
    return [name for name, labels in namespaces.items() if all_hold({NAMESPACE_NAME_LABEL: name, **labels}, wanted)]
