"""Expiry of admissions, notices and reverted pods of one tenant."""

from __future__ import annotations

from tests.unit.sync.admission.samples import (
    GPU,
    POOL,
    TENANT,
    compute_view,
    tenant_view,
)
from tests.unit.sync.admission.tenant_harness import KEY, Harness
from tests.unit.sync.scopes import set_followed
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.scheduler.core.snapshot import PodState, Quota

# -- expiry ------------------------------------------------------------------------------------------------------------


def test_pod_evicted_before_forwarding_waits_again_at_its_deadline() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 29)
    assert harness.get_verdict() is not None

    harness.admission.expire_verdicts(harness.now + 30)
    assert harness.get_verdict() is None
    assert harness.get_state() is PodState.WAITING


def expire_admission(harness: Harness, seconds: float) -> None:
    harness.now += seconds
    harness.admission.expire_verdicts(harness.now)


def test_unbound_pod_releases_its_capacity_and_is_excluded_for_a_while() -> None:
    harness = Harness()
    harness.admit_pod()
    expire_admission(harness, 119)
    assert harness.get_state() is PodState.PLACED
    expire_admission(harness, 1)
    assert harness.get_verdict() is None
    assert "no scheduler of this cluster bound it" in harness.get_reason()
    expire_admission(harness, 299)
    assert harness.get_state() is None
    expire_admission(harness, 1)
    assert harness.get_state() is PodState.WAITING


def test_pod_with_a_stuck_gate_is_not_reported_as_unbound() -> None:
    harness = Harness()
    harness.pods.put_tenant(tenant_view(schedulingGates=[{"name": ADMISSION_GATE}]))
    harness.admit_pod()
    expire_admission(harness, 120)
    assert harness.get_reason() == "was admitted, but its gate could not be lifted; its capacity was released"


def test_pod_of_an_unreachable_tenant_releases_its_capacity() -> None:
    """The tenant's server could not remove the gate or show a binding, so the tenant's scheduler is not blamed."""
    harness = Harness()
    harness.admit_pod()
    set_followed(harness.scope, followed=False)
    expire_admission(harness, 120)
    assert harness.get_verdict() is None
    assert harness.get_reason().startswith("was admitted while this cluster's API server did not answer")
    expire_admission(harness, 3000)
    assert harness.get_state() is None
    set_followed(harness.scope, followed=True)
    harness.admission.pods_listed()
    assert harness.get_state() is PodState.WAITING
    assert harness.service.pokes


def test_bind_timeout_starts_after_the_tenant_is_reachable_again() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.now += 110
    harness.admission.pods_listed()
    assert harness.admission.next_deadline() == harness.now + 120
    expire_admission(harness, 119)
    assert harness.get_state() is PodState.PLACED
    expire_admission(harness, 1)
    assert harness.get_verdict() is None


def test_just_forwarded_pod_does_not_count_as_missing() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.sent["u1"] = harness.now + 60
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 30)
    assert harness.get_state() is PodState.NOTIFIED


def test_running_pod_stays_evicted_until_its_end() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view())
    harness.evict_pod(deadline=30)
    harness.admission.expire_verdicts(harness.now + 1000)
    assert harness.get_verdict() is not None


def test_next_deadline_is_the_earliest_of_evicted_pods() -> None:
    harness = Harness()
    assert harness.admission.next_deadline() is None
    harness.admit_pod()
    bound_by = harness.admission.next_deadline()
    assert bound_by == harness.now + 120, "by then the tenant's scheduler must have bound it"
    harness.evict_pod(deadline=30)
    assert harness.admission.next_deadline() == harness.now + 30
    harness.now += 30
    assert harness.admission.next_deadline() is None


def test_pod_that_no_node_took_waits_again_and_is_reverted() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    assert harness.get_state() is PodState.PLACED
    harness.admission.verdicts.revert_compute_pod("u1", "below-u1")
    assert harness.get_state() is PodState.WAITING
    assert harness.get_verdict() is None

    harness.admit_pod(node="host-2")
    harness.admission.verdicts.revert_compute_pod("u1", "below-u1")
    verdict = harness.get_verdict()
    assert verdict is not None, "the same compute pod is taken back once"
    assert verdict.node == "host-2"


def test_reverted_compute_pod_taken_by_a_node_counts_again() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    harness.admission.verdicts.revert_compute_pod("u1", "below-u1")
    harness.admit_pod(node="host-2")
    harness.pods.put_compute(compute_view(node="host-1"))
    harness.admission.verdicts.keep_compute_pod("u1", "another")
    verdict = harness.get_verdict()
    assert verdict is not None
    assert verdict.node == "host-2"

    harness.admission.verdicts.keep_compute_pod("u1", "below-u1")
    assert harness.get_state() is PodState.PLACED
    verdict = harness.get_verdict()
    assert verdict is not None
    assert verdict.node == "host-1"


def test_reverted_state_is_dropped_with_its_pod() -> None:
    harness = Harness()
    harness.admit_pod()
    harness.pods.put_compute(compute_view(node="", phase="Pending"))
    harness.admission.verdicts.revert_compute_pod("u1", "below-u1")
    harness.pods.drop_tenant()
    harness.pods.drop_compute()
    harness.admission.pod_changed(KEY)

    assert not harness.admission.observer.unbound.reverted
    assert harness.admission.gangs.find_member("u1") is None


def test_quota_change_rebuilds_all_gangs() -> None:
    harness = Harness()
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    pokes = harness.service.pokes
    first, _ = harness.admission.gangs.build_gangs()
    harness.admission.quotas_changed([quota])

    assert harness.admission.quotas == (quota,)
    assert harness.admission.gangs.build_gangs()[0][0] is not first[0]
    assert harness.service.pokes > pokes
