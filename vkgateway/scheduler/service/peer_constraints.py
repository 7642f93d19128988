"""Hard constraints of a tenant's pods about other pods, as the arbiter keeps them, and the pods that they select.

The tenant's scheduler sees virtual nodes, the compute cluster's scheduler sees a pod that requires one compute node. So
neither judges where in the pool a pod goes:

- topology spread counts the nodes that the pod's node affinity matches (`nodeAffinityPolicy: Honor`): one node;
- pod affinity over host names holds in the compute cluster only on the host of a peer;
- pod anti-affinity over host names admits one pod to each virtual node.

The rules here are those, for the node that the arbiter chooses.
"""

from __future__ import annotations

import hashlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from vkgateway.api.objects import Object
from vkgateway.kinds.context import HOSTNAME_LABEL, POOL_WIDE_LABELS
from vkgateway.kinds.pods.translation.node_terms import REQUIRED
from vkgateway.kinds.pods.translation.peer_terms import NAMESPACE_NAME_LABEL, NamespaceLabels
from vkgateway.kinds.pods.translation.to_compute import is_scheduled
from vkgateway.scheduler.core.capacity.node_matching import meets_requirement
from vkgateway.scheduler.core.peer_rules import NO_MINIMUM, VIRTUAL_NODE, PeerRules, PeerTerm, SpreadRule
from vkgateway.scheduler.core.snapshot import Requirement
from vkgateway.scheduler.governed import is_hard_spread

_WAYS_OUT: Final = {
    "podAffinity": "set the annotation kueue.x-k8s.io/podset-required-topology, or make the term preferred",
    "podAntiAffinity": "use topologySpreadConstraints over kubernetes.io/hostname, or make the term preferred",
}


@dataclass(frozen=True, slots=True)
class _Term:
    """Pods that a term selects by namespace and labels. Without requirements (None) it selects none."""

    namespaces: frozenset[str]
    namespace_labels: tuple[Requirement, ...] | None
    labels: tuple[Requirement, ...] | None

    def selects(
        self, namespace: str, labels: Mapping[str, str], namespaces: Callable[[], Mapping[str, Mapping[str, str]]]
    ) -> bool:
        if self.labels is None or not _meets_all(self.labels, labels):
            return False
        if namespace in self.namespaces:
            return True
        if self.namespace_labels is None:
            return False
        return _meets_all(self.namespace_labels, {NAMESPACE_NAME_LABEL: namespace, **namespaces().get(namespace, {})})


@dataclass(frozen=True, slots=True)
class Selector:
    """Pods that all terms select."""

    terms: tuple[_Term, ...]
    counts_terminating: bool
    """Whether pods count whose deletion has begun: for affinity they do, for topology spread they don't."""

    def name_for(self, tenant: str) -> str:
        """Return the selector's name in the rules of a tenant's pods."""
        text = repr((*((sorted(term.namespaces), term.namespace_labels, term.labels) for term in self.terms),))
        return f"{tenant}/{hashlib.sha256(f'{text} {self.counts_terminating}'.encode()).hexdigest()[:16]}"


@dataclass(frozen=True, slots=True)
class PeerConstraints:
    """Hard constraints of one pod about other pods."""

    rules: PeerRules
    """What the arbiter keeps, with the names in `selectors`."""
    selectors: Mapping[str, Selector]
    fault: str = ""
    """Field and value of a constraint that the arbiter cannot keep, and the way out."""


def read_constraints(
    pod: Object, tenant: str, *, fronts: Sequence[Mapping[str, str]], carried: frozenset[str]
) -> PeerConstraints:
    """Return the hard constraints of a pod about other pods.

    `fronts` are the labels that the gateway sets on the virtual nodes where the pod may run, and that all their compute
    nodes share. `carried` are the label keys of compute nodes.
    """
    reader = _Reader(pod, tenant, fronts, carried)
    rules = PeerRules(
        anti_affinity=tuple(dict.fromkeys(reader.anti_affinity())),
        spread=tuple(reader.spread()),
    )
    selector, keys = reader.affinity()
    if keys:
        rules = replace(rules, affinity=selector, affinity_keys=keys)
    return PeerConstraints(rules, reader.selectors, "; ".join(reader.faults))


class _Reader:
    def __init__(self, pod: Object, tenant: str, fronts: Sequence[Mapping[str, str]], carried: frozenset[str]) -> None:
        self._spec = pod["spec"]
        self._namespace: str = pod["metadata"]["namespace"]
        self._labels: Mapping[str, str] = pod["metadata"].get("labels") or {}
        self._bypasses_scheduler = bool(self._spec.get("nodeName")) and not is_scheduled(pod)
        self._tenant, self._fronts, self._carried = tenant, fronts, carried
        self.selectors: dict[str, Selector] = {}
        self.faults: list[str] = []

    def affinity(self) -> tuple[str, tuple[str, ...]]:
        """Return the selector of the peers and the topology keys that the arbiter keeps."""
        terms = list(self._terms_of("podAffinity"))
        keys = tuple(dict.fromkeys(term["topologyKey"] for term in terms if term["topologyKey"] == HOSTNAME_LABEL))
        return (self._add_selector(map(self._read_term, terms)) if keys else ""), keys

    def anti_affinity(self) -> Iterator[PeerTerm]:
        """Yield the terms that the arbiter keeps. A virtual node is one domain of each label that it shows."""
        for term in self._terms_of("podAntiAffinity"):
            key = term["topologyKey"]
            if self._bypasses_scheduler and key == HOSTNAME_LABEL:
                yield PeerTerm(self._add_selector([self._read_term(term)]), key)
            elif self._fronts and all(key in labels for labels in self._fronts):
                yield PeerTerm(self._add_selector([self._read_term(term)]), VIRTUAL_NODE)

    def spread(self) -> Iterator[SpreadRule]:
        """Yield the topology spread constraints within a pool.

        The compute cluster's scheduler sees one domain only, so it counts the fewest pods as none where a constraint
        needs more domains. The same holds for the tenant's scheduler and the virtual nodes.
        """
        for index, constraint in enumerate(self._spec.get("topologySpreadConstraints") or ()):
            key = constraint["topologyKey"]
            if not is_hard_spread(constraint) or key in POOL_WIDE_LABELS:
                continue
            if constraint.get("nodeAffinityPolicy") == "Ignore":
                self.faults.append(
                    f"spec.topologySpreadConstraints[{index}].nodeAffinityPolicy: Ignore counts nodes outside the pool,"
                    " which the arbiter cannot level out: use Honor, or whenUnsatisfiable: ScheduleAnyway"
                )
                continue
            needed = constraint.get("minDomains") or 1
            selected = self._add_selector([self._read_spread(constraint)], counts_terminating=False)
            rule = SpreadRule(
                peers=selected,
                topology_key=key,
                max_skew=constraint["maxSkew"],
                min_domains=NO_MINIMUM if needed > 1 else 1,
                honors_taints=constraint.get("nodeTaintsPolicy") == "Honor",
            )
            yield rule
            if needed > len({labels.get(key) for labels in self._fronts}):
                yield replace(rule, topology_key=VIRTUAL_NODE)

    def _terms_of(self, kind: str) -> Iterator[Mapping[str, Any]]:
        """Yield the required terms of a kind; one over a label by which compute nodes of one virtual node differ is a
        fault.
        """
        terms = ((self._spec.get("affinity") or {}).get(kind) or {}).get(REQUIRED) or ()
        for index, term in enumerate(terms):
            key = term["topologyKey"]
            if key in self._carried and key != HOSTNAME_LABEL and not all(key in labels for labels in self._fronts):
                self.faults.append(
                    f"spec.affinity.{kind}.{REQUIRED}[{index}].topologyKey: {key} is a label of compute nodes that"
                    f" virtual nodes do not show, over which the arbiter keeps no such term: {_WAYS_OUT[kind]}"
                )
            yield term

    def _add_selector(self, terms: Iterable[_Term], *, counts_terminating: bool = True) -> str:
        selector = Selector(tuple(dict.fromkeys(terms)), counts_terminating)
        name = selector.name_for(self._tenant)
        self.selectors[name] = selector
        return name

    def _read_term(self, term: Mapping[str, Any]) -> _Term:
        names, selector = term.get("namespaces") or (), term.get("namespaceSelector")
        own = () if names or selector is not None else (self._namespace,)
        return _Term(
            frozenset((*names, *own)),
            _requirements(selector) if selector is not None else None,
            self._peer_labels(term, (("matchLabelKeys", "In"), ("mismatchLabelKeys", "NotIn"))),
        )

    def _read_spread(self, constraint: Mapping[str, Any]) -> _Term:
        return _Term(frozenset((self._namespace,)), None, self._peer_labels(constraint, (("matchLabelKeys", "In"),)))

    def _peer_labels(
        self, term: Mapping[str, Any], fields: Sequence[tuple[str, str]]
    ) -> tuple[Requirement, ...] | None:
        """Return the term's label selector with the values of this pod for the label keys that it names.

        API servers that merge these keys into the selector merge the same values: doing it again changes nothing.
        """
        if term.get("labelSelector") is None:
            return None
        merged = (
            Requirement(key=key, operator=operator, values=(self._labels[key],))
            for name, operator in fields
            for key in term.get(name) or ()
            if key in self._labels
        )
        return tuple(dict.fromkeys((*_requirements(term["labelSelector"]), *merged)))


def _requirements(selector: Mapping[str, Any]) -> tuple[Requirement, ...]:
    exact = sorted((selector.get("matchLabels") or {}).items())
    return (
        *(Requirement(key=key, operator="In", values=(value,)) for key, value in exact),
        *(
            Requirement(key=entry["key"], operator=entry["operator"], values=tuple(entry.get("values") or ()))
            for entry in selector.get("matchExpressions") or ()
        ),
    )


def _meets_all(requirements: Iterable[Requirement], labels: Mapping[str, str]) -> bool:
    return all(meets_requirement(each, labels.get(each.key)) for each in requirements)


class PeerSelectors:
    """Selectors of all hard constraints of one tenant's members. Without any, no pod is compared with them."""

    def __init__(self, namespaces: NamespaceLabels) -> None:
        self._namespaces = namespaces
        self._selectors: dict[str, Selector] = {}
        self._users: Counter[str] = Counter()

    def __bool__(self) -> bool:
        return bool(self._selectors)

    def add(self, constraints: PeerConstraints) -> dict[str, Selector]:
        """Add the selectors of a member; return those that are new."""
        new = {name: each for name, each in constraints.selectors.items() if name not in self._selectors}
        self._selectors |= new
        self._users.update(constraints.selectors.keys())
        return new

    def drop(self, constraints: PeerConstraints) -> None:
        """Remove the selectors of a member, as far as no other member has them."""
        self._users.subtract(constraints.selectors.keys())
        for name in constraints.selectors:
            if not self._users[name]:
                del self._users[name], self._selectors[name]

    def names_for(self, namespace: str, labels: Mapping[str, str], *, terminating: bool) -> frozenset[str]:
        """Return the names of the selectors that select a pod."""
        return frozenset(
            name
            for name, selector in self._selectors.items()
            if (selector.counts_terminating or not terminating) and self._selects(selector, namespace, labels)
        )

    def selects(self, selectors: Mapping[str, Selector], namespace: str, labels: Mapping[str, str]) -> bool:
        """Return whether any of these selectors selects a pod."""
        return any(self._selects(selector, namespace, labels) for selector in selectors.values())

    def _selects(self, selector: Selector, namespace: str, labels: Mapping[str, str]) -> bool:
        return all(term.selects(namespace, labels, self._namespaces) for term in selector.terms)

    def rules_for(
        self, constraints: PeerConstraints | None, namespace: str, labels: Mapping[str, str], *, terminating: bool
    ) -> PeerRules | None:
        """Return the rules of a member; None: it has no constraints, and none select it."""
        if not self._selectors:
            return None
        selected = self.names_for(namespace, labels, terminating=terminating)
        if constraints is None:
            return PeerRules(selected_by=selected) if selected else None
        return replace(constraints.rules, selected_by=selected)
