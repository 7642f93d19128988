"""Whatever another scheduler writes into conditions: no text for a tenant names others' queues, nodes or workloads."""

from __future__ import annotations

import json
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.modes.world import World
from vkgateway.scheduler.backends.attempt import Attempt, AttemptState
from vkgateway.scheduler.backends.kueue.kinds import decode_workload, find_wait, read_attempt
from vkgateway.scheduler.backends.names import attempt_name
from vkgateway.scheduler.core.queueing.admission import Admission, AdmissionState
from vkgateway.scheduler.pending_message import render_message
from vkgateway.scheduler.service.tenant_admission import AdmissionReasons

patient = settings(max_examples=100, deadline=None)
UID = "5c023c28-8533-4927-b266-56bca5e310c1"
SECRETS = ("victor.a100", "gpu-host-17", "victor-3f2a", UID, "victor")
"""A queue, a node, a Workload, its UID and the tenant to which they belong."""
TEXTS = (
    "couldn't assign flavors to pod set {0}: insufficient unused quota for nvidia.com/gpu in flavor {1}, 8 more needed",
    "couldn't assign flavors to pod set {0}: insufficient quota for {1} in flavor {2}, request > maximum capacity",
    "insufficient quota for {0} in flavor {1}, previously considered podsets requests (8) + current podset request (8) "
    "> maximum capacity (9)",
    ". Pending the preemption of {0} workload(s)",
    "Preempted to accommodate a workload (UID: {0}, JobUID: {1}) due to reclamation within the cohort; "
    "preemptor path: /{2}/{0}; preemptee path: /{1}/{2}",
    "(UID: {0}",
    'topology "{0}" allows to fit only 1 out of 2 pod(s). Total nodes: 4; excluded: nodeSelector: {1}, taint "{2}": 3',
    "LocalQueue {0} doesn't exist",
    "ClusterQueue {0} is inactive",
    "The ClusterQueue {0} is stopped",
    "Workload was evicted due to the node failure of {0}, {1}",
    "Exceeded the PodsReady timeout {0}/{1}",
    "Workload no longer fits after processing another workload {2}",
    "{0}",
)
names = st.one_of(st.sampled_from(SECRETS), st.text(max_size=12).map(lambda text: f"{text}{SECRETS[0]}{text}"))
messages = st.lists(
    st.builds(lambda text, *found: text.format(*found), st.sampled_from(TEXTS), names, names, names), max_size=3
).map("; ".join)
conditions = st.fixed_dictionaries(
    {
        "type": st.sampled_from(
            ["QuotaReserved", "Admitted", "Evicted", "Preempted", "Requeued", "PodsReady", "Finished"]
        ),
        "status": st.sampled_from(["True", "False", "Unknown"]),
        "reason": names,
        "message": messages,
    }
)


def read(found: list[dict[str, str]], *, name: str, active: bool) -> Attempt:
    """Return the attempt of the tenant a with these conditions."""
    metadata = {
        "name": name,
        "uid": "w1",
        "resourceVersion": "1",
        "annotations": {"vkgateway.io/gang-tenant": "a"},
        "labels": {"vkgateway.io/pool": "pool"},
    }
    document = {"metadata": metadata, "spec": {"active": active}, "status": {"conditions": found}}
    return read_attempt(decode_workload(json.dumps(document).encode()), "compute", lambda host: host)


def assert_clean(text: str) -> None:
    for secret in SECRETS:
        assert secret not in text


@given(messages)
@patient
def test_reason_is_one_of_ours(message: str) -> None:
    wait = find_wait(message)
    assert_clean(wait.message)
    assert wait.message


@given(st.lists(conditions, max_size=5), st.booleans(), st.booleans())
@patient
def test_no_text_of_a_tenant_names_others(found: list[dict[str, str]], active: bool, runs: bool) -> None:
    world = World()
    gang = world.add("train", "a", [8])
    world.add("other", "victor", [8])
    world.known.add("victor")
    world.settle()
    if not runs:
        world.gangs["train"] = gang
    name, other = attempt_name("a", gang.id), world.attempt_of("other")
    assert other is not None
    known = world.attempts[name]
    attempt = read(found, name=name, active=active)
    slots = known.slots if attempt.state is AttemptState.ADMITTED else {}
    world.attempts[name] = replace(attempt, digest=known.digest, slots=slots)
    world.attempts[other.name] = replace(other, uid=UID)
    decisions = world.plan().decisions
    for report in decisions.holds:
        assert_clean(report.message)
        assert_clean(render_message(report, pool="pool.compute", now=world.now))
    for evict in decisions.evicts:
        assert evict.makes_room_for in ("", world.gang("other").id)
        assert_clean(eviction_text(evict.makes_room_for))


def eviction_text(preemptor: str) -> str:
    """Return what the tenant a reads on a pod that is evicted for a gang."""
    scope, terms = SimpleNamespace(name="a"), SimpleNamespace(eviction_terms=lambda _: SimpleNamespace(grace_max=5.0))
    unused = cast(Any, None)
    reasons = AdmissionReasons(cast(Any, scope), unused, store=unused, terms=cast(Any, terms))
    verdict = Admission(AdmissionState.EVICTING, deadline=5.0, evicted_for=preemptor)
    return reasons.evicting_admission("train-0", verdict).message
