"""One tenant's part: what was said of its pods, what its reconcilers are answered, and what is left behind."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.sync.admission.samples import (
    BORN_AT,
    GPU,
    OTHER_POOL,
    POOL,
    TENANT,
    Pods,
    Service,
    above,
    below,
    hold,
    marks,
    member,
)
from vkgateway.arbiter.decisions import Admit, Evict, PendingReason, Promote, Reprieve
from vkgateway.arbiter.queueing.node_limits import Admission
from vkgateway.arbiter.snapshot import PodState, PoolKey, Quota
from vkgateway.model.names import ADMISSION_GATE, COMPUTE_NODE_ANNOTATION, EVICTION_DEADLINE_ANNOTATION, UID_ANNOTATION
from vkgateway.sync.admission.member import GangMember
from vkgateway.sync.admission.tenant_admission import TenantAdmission
from vkgateway.sync.admission.verdict_store import PREEMPTED, Verdict, VerdictState, VerdictStore
from vkgateway.sync.views.ownership import Key

GANG = f"{TENANT}/default/pod/u1"
NODE, OTHER_NODE = "a100.local", "h100.local"
KEY = ("default", "pod-u1")


class Made:
    """A tenant with one pod that waits, unless told otherwise."""

    def __init__(self, *, waits: bool = True) -> None:
        self.now = BORN_AT + 1000
        self.pods = Pods()
        self.service = Service()
        self.sent: dict[str, float] = {}
        self.looked: list[Key] = []
        self.part = TenantAdmission(
            TENANT,
            self.pods.above,
            links=self.pods.links,
            bindings=self.pods.bindings(),
            service=self.service,
            sent=self.sent,
            look=self.looked.append,
            clock=lambda: self.now,
            settled=lambda: self.settled,
            followed=lambda: self.followed,
        )
        self.settled = self.followed = True
        self.pods.link.add_listener(TENANT, self)
        if waits:
            self.add()

    def add(self, one: GangMember | None = None) -> None:
        """A pod above that was read."""
        one = one or member()
        self.pods.put_above(above(one.uid))
        self.part.put_member(one)

    def admit(self, *, node: str = "host-1", pool: PoolKey = POOL, borrowed: bool = True) -> None:
        admit = Admit(gang=GANG, pool=pool, nodes={"u1": node}, borrowed=borrowed, behind="alpha/y")
        self.part.apply_admit(admit, now=self.now)

    def evict(self, *, makes_room_for: str = "beta/x", deadline: float = 30.0) -> None:
        self.part.apply_evict(
            Evict(
                gang=GANG,
                pods=("u1",),
                whole=True,
                makes_room_for=makes_room_for,
                deadline=self.now + deadline,
                lost=0.0,
            )
        )

    def verdict(self) -> Verdict | None:
        return self.part.verdict_store.verdicts.get("u1")

    def state(self) -> PodState | None:
        gangs, _ = self.part.gangs.build_gangs()
        return gangs[0].pods[0].state if gangs else None

    def why(self) -> str:
        """Why the pod waits, where the arbiter is not asked about it."""
        _, holds = self.part.gangs.build_gangs()
        return holds[0].message if holds else ""

    # -- what a link tells ---------------------------------------------------------------------------------------

    def compute_pod_changed(self, key: Key) -> None:
        self.part.pod_changed(key)

    def compute_tokens_gone(self, key: Key) -> None: ...

    def compute_copy_changed(self, kind: Any, key: Key) -> None: ...

    def compute_namespace_changed(self, namespace: str) -> None: ...

    def compute_service_changed(self, key: Key) -> None: ...

    def compute_policy_changed(self, namespace: str) -> None: ...

    def compute_budget_changed(self, key: Key) -> None: ...

    def compute_names_changed(self) -> None: ...

    def compute_services_known(self) -> None: ...

    def compute_claim_changed(self, uid: str) -> None: ...

    def compute_storage_known(self) -> None: ...

    def compute_event_changed(self, link: str, key: Key) -> None: ...

    def compute_reachable(self) -> None: ...


# -- what is answered --------------------------------------------------------------------------------------------------


def test_of_a_pod_that_was_not_read_nothing_is_said_yet() -> None:
    assert Made(waits=False).part.admission_for("u1", NODE) == Admission("pending")


def test_nor_of_one_that_was_not_decided_about_yet() -> None:
    assert Made().part.admission_for("u1", NODE) == Admission("pending")


def test_a_pod_whose_gang_waits_is_held_with_the_reason() -> None:
    made = Made()
    made.part.set_pending_reasons([hold(code=PendingReason.QUOTA, message="over")], pools={})
    assert made.part.admission_for("u1", NODE) == Admission("held", "WaitingForQuota", "over")


def test_a_pod_that_was_admitted_is_told_its_node() -> None:
    made = Made()
    made.admit(borrowed=False)
    assert made.part.admission_for("u1", NODE) == Admission("admitted", node="host-1", borrowed=False, behind="alpha/y")
    assert made.part.admission_for("u1", NODE).verdict == "admitted", "asking takes nothing away"


@pytest.mark.parametrize("node", [OTHER_NODE, "elsewhere", ""])
def test_a_pod_that_was_bound_elsewhere_than_decided_waits_again(node: str) -> None:
    made = Made()
    made.admit()
    pokes = made.service.pokes

    assert made.part.admission_for("u1", node) == Admission("pending")
    assert made.verdict() is None
    assert made.state() is PodState.WAITING
    assert made.service.pokes > pokes


def test_a_pod_that_is_told_to_go_before_it_is_below_is_not_sent_there() -> None:
    made = Made()
    made.admit()
    made.evict()
    said = made.part.admission_for("u1", NODE)
    assert (said.verdict, said.code, said.deadline) == ("evicting", PREEMPTED, made.now + 30)


def test_a_pod_that_runs_may_unless_it_is_told_to_go() -> None:
    made = Made()
    assert made.part.running_admission("u1") == Admission("admitted")
    made.admit()
    assert made.part.running_admission("u1") == Admission("admitted", borrowed=True)
    made.part.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert made.part.running_admission("u1") == Admission("admitted", borrowed=False)
    made.evict()
    said = made.part.running_admission("u1")
    assert (said.verdict, said.deadline, said.grace, said.evicted_for) == ("evicting", made.now + 30, 60.0, "beta/x")


def test_a_tenant_reads_nothing_of_others_where_one_of_its_pods_must_go() -> None:
    made = Made()
    made.admit()
    made.evict(makes_room_for="beta/secret/gang/x")
    assert made.part.running_admission("u1").message == "makes room for another tenant's work, which comes first"


def test_a_tenant_reads_which_of_its_own_gangs_takes_the_place() -> None:
    made = Made()
    made.admit()
    made.evict(makes_room_for=f"{TENANT}/default/gang/train")
    assert made.part.running_admission("u1").message == "makes room for gang default/train"
    made.add(member("u2"))
    made.evict(makes_room_for=f"{TENANT}/default/pod/u2")
    assert made.part.running_admission("u1").message == "makes room for pod default/pod-u2"
    made.evict(makes_room_for=f"{TENANT}/default/pod/gone")
    assert made.part.running_admission("u1").message == "makes room for a pod of namespace default"

    made.evict(makes_room_for=f"{TENANT}-two/default/gang/train")
    assert "train" not in made.part.running_admission("u1").message, "a tenant whose name begins alike is another"


# -- what was decided --------------------------------------------------------------------------------------------------


def test_who_waits_behind_a_pod_of_its_own_tenant_reads_its_name() -> None:
    made = Made()
    made.add(member("u2"))
    ahead = f"{TENANT}/default/pod/u2"
    made.part.set_pending_reasons([hold(message="kept for default/pod/u2, which is ahead", behind=ahead)], pools={})
    assert made.part.admission_for("u1", NODE).message == "kept for pod default/pod-u2, which is ahead"


def test_an_admission_is_noted_and_looked_at() -> None:
    made = Made()
    made.admit()

    assert made.verdict() == Verdict(
        said=VerdictState.ADMITTED, pool=POOL, node="host-1", borrowed=True, since=made.now, behind="alpha/y"
    )
    assert made.looked == [KEY]
    assert made.state() is PodState.PLACED


def test_of_pods_that_went_or_started_meanwhile_nothing_is_noted() -> None:
    made = Made()
    made.admit(node="host-1")
    made.admit(node="host-2")
    verdict = made.verdict()
    assert verdict is not None
    assert verdict.node == "host-1"

    made = Made()
    made.pods.drop_above()
    made.admit()
    assert made.verdict() is None

    made = Made(waits=False)
    made.admit()
    made.evict()
    assert made.verdict() is None
    assert made.looked == []


def test_a_pod_that_runs_since_before_the_gateway_did_is_told_to_go_all_the_same() -> None:
    made = Made()
    made.pods.put_below(below(node="host-3"))
    made.part.verdict_store.verdicts.clear()
    made.evict()
    verdict = made.verdict()

    assert verdict is not None
    assert (verdict.said, verdict.node, verdict.evicted_for) == (VerdictState.EVICTING, "host-3", "beta/x")


def test_one_of_which_nothing_was_said_and_nothing_runs_is_not_told_to_go() -> None:
    made = Made()
    made.evict()
    assert made.verdict() is None


def test_a_reprieve_takes_the_notice_back() -> None:
    made = Made()
    made.admit()
    made.evict()
    made.part.apply_reprieve(Reprieve(gang=GANG, pods=("u1",)))
    verdict = made.verdict()

    assert verdict is not None
    assert (verdict.said, verdict.deadline, verdict.evicted_for) == (VerdictState.ADMITTED, 0.0, "")
    assert made.state() is PodState.PLACED
    assert made.looked[-1] == KEY


def test_a_promotion_is_noted_and_its_like_below() -> None:
    made = Made()
    made.admit(borrowed=True)
    made.part.apply_promote(Promote(gang=GANG, pods=("u1",)))
    assert made.part.admission_for("u1", NODE).borrowed is False


def test_holds_take_the_place_of_all_before_and_only_what_changed_is_looked_at() -> None:
    made = Made()
    made.add(member("u2"))
    made.part.set_pending_reasons([hold("u1"), hold("u2")], pools={GANG: POOL})
    assert sorted(made.looked) == [KEY, ("default", "pod-u2")]
    waits = made.part.pending_message(member("u1"))
    assert waits is not None
    assert waits.text.startswith(waits.reason)

    made.looked.clear()
    made.part.set_pending_reasons([hold("u1"), hold("u2", message="another")], pools={GANG: POOL})
    assert made.looked == [("default", "pod-u2")]

    made.part.set_pending_reasons([], pools={})
    assert made.part.pending_message(member("u1")) is None


def test_of_a_gang_that_runs_in_part_only_those_who_wait_are_looked_at() -> None:
    made = Made(waits=False)
    group = f"{TENANT}/default/gang/train"
    made.add(member("u1", marks=marks()))
    made.add(member("u2", marks=marks()))
    made.add(member("cpu", marks=marks(), governed=False))
    made.part.apply_admit(Admit(gang=group, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=made.now)
    made.looked.clear()
    made.part.set_pending_reasons([hold(), _gang_hold(group)], pools={})

    assert made.looked == [("default", "pod-u2")]


def _gang_hold(gang: str) -> Any:
    made = hold()
    return type(made)(gang=gang, code=made.code, message=made.message)


# -- what does not hold any more ---------------------------------------------------------------------------------------


def test_a_pod_that_was_told_to_go_before_it_was_below_just_waits_again_at_its_deadline() -> None:
    made = Made()
    made.admit()
    made.evict(deadline=30)
    made.part.expire_verdicts(made.now + 29)
    assert made.verdict() is not None

    made.part.expire_verdicts(made.now + 30)
    assert made.verdict() is None
    assert made.state() is PodState.WAITING


def expire(made: Made, seconds: float) -> None:
    made.now += seconds
    made.part.expire_verdicts(made.now)


def test_a_pod_that_no_scheduler_binds_gives_its_room_back_and_is_left_alone_for_a_while() -> None:
    made = Made()
    made.admit()
    expire(made, 119)
    assert made.state() is PodState.PLACED
    expire(made, 1)
    assert made.verdict() is None
    assert "no scheduler of this cluster bound it" in made.why()
    expire(made, 299)
    assert made.state() is None
    expire(made, 1)
    assert made.state() is PodState.WAITING


def test_one_whose_gate_could_not_be_lifted_is_not_told_that_nobody_bound_it() -> None:
    made = Made()
    made.pods.put_above(above(schedulingGates=[{"name": ADMISSION_GATE}]))
    made.admit()
    expire(made, 120)
    assert made.why() == "was admitted, but its gate could not be lifted; its room was given back"


def test_one_whose_api_server_is_away_gives_its_room_back_until_that_is_there() -> None:
    """Nobody could let it go, or see whether it was bound: nothing is said of the tenant's scheduler."""
    made = Made()
    made.admit()
    made.followed = False
    expire(made, 120)
    assert made.verdict() is None
    assert made.why().startswith("was admitted while this cluster's API server did not answer")
    expire(made, 3000)
    assert made.state() is None
    made.followed = True
    made.part.pods_listed()
    assert made.state() is PodState.WAITING
    assert made.service.pokes


def test_one_whose_api_server_was_away_has_its_time_from_when_that_is_back() -> None:
    made = Made()
    made.admit()
    made.now += 110
    made.part.pods_listed()
    assert made.part.next_deadline() == made.now + 120
    expire(made, 119)
    assert made.state() is PodState.PLACED
    expire(made, 1)
    assert made.verdict() is None


def test_one_that_was_sent_below_a_moment_ago_is_not_taken_for_one_that_is_not_there() -> None:
    made = Made()
    made.admit()
    made.sent["u1"] = made.now + 60
    made.evict(deadline=30)
    made.part.expire_verdicts(made.now + 30)
    assert made.state() is PodState.NOTIFIED


def test_one_that_runs_stays_told_to_go_until_it_is_gone() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below())
    made.evict(deadline=30)
    made.part.expire_verdicts(made.now + 1000)
    assert made.verdict() is not None


def test_the_next_deadline_is_that_of_the_first_who_is_told_to_go() -> None:
    made = Made()
    assert made.part.next_deadline() is None
    made.admit()
    bound_by = made.part.next_deadline()
    assert bound_by == made.now + 120, "by then the tenant's scheduler must have bound it"
    made.evict(deadline=30)
    assert made.part.next_deadline() == made.now + 30
    made.now += 30
    assert made.part.next_deadline() is None


def test_a_pod_that_no_node_took_waits_again_and_its_compute_pod_stands_for_nobody() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below(node="", phase="Pending"))
    assert made.state() is PodState.PLACED
    made.part.revert_compute_pod("u1", "below-u1")
    assert made.state() is PodState.WAITING
    assert made.verdict() is None

    made.admit(node="host-2")
    made.part.revert_compute_pod("u1", "below-u1")
    verdict = made.verdict()
    assert verdict is not None, "the same compute pod is taken back once"
    assert verdict.node == "host-2"


def test_a_compute_pod_that_a_node_took_after_all_stands_for_its_pod_again() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below(node="", phase="Pending"))
    made.part.revert_compute_pod("u1", "below-u1")
    made.admit(node="host-2")
    made.pods.put_below(below(node="host-1"))
    made.part.keep_compute_pod("u1", "another")
    verdict = made.verdict()
    assert verdict is not None
    assert verdict.node == "host-2"

    made.part.keep_compute_pod("u1", "below-u1")
    assert made.state() is PodState.PLACED
    verdict = made.verdict()
    assert verdict is not None
    assert verdict.node == "host-1"


def test_what_was_taken_back_is_forgotten_with_its_pod() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below(node="", phase="Pending"))
    made.part.revert_compute_pod("u1", "below-u1")
    made.pods.drop_above()
    made.pods.drop_below()
    made.part.pod_changed(KEY)

    assert not made.part._observer.reverted_pods
    assert made.part.gangs.find_member("u1") is None


def test_changed_quotas_make_everything_anew() -> None:
    made = Made()
    quota = Quota(tenant=TENANT, pool=POOL, limit={GPU: 8000})
    pokes = made.service.pokes
    first, _ = made.part.gangs.build_gangs()
    made.part.quotas_changed([quota])

    assert made.part.quotas == (quota,)
    assert made.part.gangs.build_gangs()[0][0] is not first[0]
    assert made.service.pokes > pokes


# -- who is there ------------------------------------------------------------------------------------------------------


def test_a_pod_is_the_arbiters_to_place_if_it_is_governed() -> None:
    made = Made()
    made.add(member("cpu", governed=False, marks=marks()))
    assert made.part.is_governed_pod("u1")
    assert not made.part.is_governed_pod("cpu")
    assert not made.part.is_governed_pod("nobody")


def test_a_pod_that_changed_is_looked_at_anew() -> None:
    made = Made()
    made.admit()
    assert made.state() is PodState.PLACED
    pokes = made.service.pokes
    made.pods.put_above(above(phase="Failed"))
    assert made.part.pod_changed(KEY) == []
    assert made.service.pokes > pokes
    assert made.state() is None


def test_a_pod_that_is_gone_above_and_below_is_forgotten() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below())
    made.service.recounted.clear()
    made.pods.drop_above()
    assert made.part.pod_changed(KEY) == []
    assert made.state() is PodState.ENDING

    made.pods.drop_below()
    assert made.part.gangs.find_member("u1") is None
    assert made.verdict() is None
    assert not made.part.is_governed_pod("u1")
    assert not made.part._last_states
    assert not made.part._accounting._start_times


@pytest.mark.parametrize(("phase", "minimum"), [("Succeeded", 1), ("Failed", 2)])
def test_whoever_ended_well_and_was_deleted_leaves_a_gang_that_does_not_wait_for_it(phase: str, minimum: int) -> None:
    made = Made(waits=False)
    for uid in ("u1", "u2"):
        made.add(member(uid, marks=marks(minimum=2)))
    made.part.apply_admit(Admit(gang=GANG, pool=POOL, nodes={"u1": "host-1"}, borrowed=True), now=made.now)
    made.pods.put_below(below())
    made.pods.put_below(below(phase=phase))
    made.pods.put_above(above(phase=phase))
    made.part.pod_changed(KEY)
    made.pods.drop_above()
    made.pods.drop_below()

    [gang], _ = made.part.gangs.build_gangs()
    assert [pod.uid for pod in gang.pods] == ["u2"]
    assert gang.minimum == minimum


def test_what_changes_nothing_that_counts_leads_to_no_cycle() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below())
    made.part.gangs.build_gangs()
    pokes = made.service.pokes
    made.pods.put_above(above(phase="Running"))
    made.part.pod_changed(KEY)
    made.pods.put_below(below(marks={"example.com/x": "y"}))

    assert made.service.pokes == pokes


def test_what_a_pod_held_below_is_told_once_when_it_has_ended() -> None:
    made = Made()
    made.admit()
    made.part.pod_changed(KEY)
    made.pods.put_below(below())
    assert made.service.ran == []
    made.now += 60
    made.pods.put_below(below(phase="Succeeded"))
    made.pods.put_below(below(phase="Succeeded", deletionTimestamp="2026-03-01T12:30:00Z"))
    made.pods.drop_above()
    made.pods.drop_below()

    assert [(ran.name, ran.start, ran.end, ran.end_reason) for ran in made.service.ran] == [
        ("pod-u1", made.now - 60, made.now, "Succeeded")
    ]


def test_a_pod_that_never_ran_below_used_nothing() -> None:
    made = Made()
    made.admit()
    made.part.pod_changed(KEY)
    made.pods.drop_above()
    made.part.pod_changed(KEY)
    assert made.service.ran == []


def test_one_that_was_sent_below_is_not_forgotten_before_that_shows_or_is_given_up() -> None:
    made = Made()
    made.admit()
    made.sent["u1"] = made.now + 30
    made.pods.drop_above()
    assert made.part.pod_changed(KEY) == []
    assert made.state() is PodState.ENDING

    made.now += 30
    assert [one.uid for one in made.part.pod_changed(KEY)] == ["u1"]


def test_a_namesake_leaves_what_it_follows_to_end() -> None:
    made = Made()
    made.admit()
    made.pods.put_below(below())
    made.pods.put_above(above("u2", meta={"name": "pod-u1"}))
    made.part.put_member(member("u2", key=KEY))
    made.part.pod_changed(KEY)
    gangs, _ = made.part.gangs.build_gangs()

    assert {pod.uid: pod.state for gang in gangs for pod in gang.pods} == {
        "u1": PodState.ENDING,
        "u2": PodState.WAITING,
    }


def test_what_runs_of_a_pod_is_counted_anew_when_it_is_read() -> None:
    made = Made(waits=False)
    made.pods.put_below(below())
    made.service.recounted.clear()
    made.add()
    assert made.service.recounted == ["local/u1"]


# -- what is left behind -----------------------------------------------------------------------------------------------


def test_what_still_ends_of_pods_that_are_gone_since_before_the_start_is_known() -> None:
    made = Made(waits=False)
    made.pods.put_below(below("gone"))
    assert made.part.orphan_gangs() == [], "before everything is listed, absence is no fact"
    made.part.pods_listed()

    assert [gang.id for gang in made.part.orphan_gangs()] == ["alpha/default/gone/gone"]
    assert made.part.is_governed_pod("gone")
    assert made.service.recounted == ["local/gone"]

    made.pods.drop_below("gone")
    assert made.part.orphan_gangs() == []
    assert not made.part.is_governed_pod("gone")


@pytest.mark.parametrize(
    "other",
    [
        {"phase": "Succeeded"},
        {"marks": {COMPUTE_NODE_ANNOTATION: ""}},
        {"node": "", "phase": "Pending", "deletionTimestamp": "2026-03-01T12:30:00Z"},
    ],
    ids=["ended", "not placed", "never ran"],
)
def test_what_has_ended_or_was_not_placed_is_not_left_behind(other: dict[str, Any]) -> None:
    made = Made(waits=False)
    made.pods.put_below(below("gone", **other))
    made.part.pods_listed()
    assert made.part.orphan_gangs() == []


def test_what_has_an_owner_is_not_left_behind() -> None:
    made = Made()
    made.pods.put_below(below())
    made.part.pods_listed()
    assert made.part.orphan_gangs() == []

    made.pods.put_below(below(marks={UID_ANNOTATION: "an-earlier-one"}))
    assert [gang.id for gang in made.part.orphan_gangs()] == ["alpha/default/gone/an-earlier-one"]


def test_a_notice_on_what_is_left_behind_changes_nothing() -> None:
    made = Made(waits=False)
    made.part.pods_listed()
    made.pods.put_below(below("gone", marks={EVICTION_DEADLINE_ANNOTATION: "2026-03-01T12:30:00Z"}))
    gang = made.part.orphan_gangs()[0]
    assert gang.pods[0].state is PodState.ENDING


def test_everything_is_known_once_all_is_listed_and_read() -> None:
    made = Made()
    said = [made.part.is_known]
    made.part.pods_listed()
    said.append(made.part.is_known)
    made.settled = False
    said.append(made.part.is_known)
    made.settled = True
    made.part.unread_pods.add(KEY)
    said.append(made.part.is_known)
    assert said == [False, True, False, False]


def test_only_pods_that_came_after_the_first_list_are_measured_on_their_way(monkeypatch: pytest.MonkeyPatch) -> None:
    made, arrived = Made(waits=False), list[str]()
    monkeypatch.setattr(made.service.start_meter, "pod_arrived", lambda _gang, uid, **_times: arrived.append(uid))
    made.add(member("read-before"))
    made.part.unread_pods.add(("default", "pod-listed"))
    made.part.pods_listed()
    for uid in ("listed", "new", "new"):
        made.add(member(uid))
    made.part.pods_listed()
    made.add(member("bound", bound=True))
    made.add(member("newer"))
    assert arrived == ["new", "newer"]


def test_what_runs_must_be_read_before_everything_is_known() -> None:
    made = Made(waits=False)
    made.part.pods_listed()
    made.pods.put_above(above())
    made.pods.put_below(below())
    said = [made.part.is_known]
    made.part.put_member(member(pools=(POOL, OTHER_POOL)))
    said.append(made.part.is_known)
    assert said == [False, True]


@pytest.mark.parametrize(
    ("other", "stands"),
    [
        ({}, True),
        ({"deletionTimestamp": "2026-03-01T12:30:00Z"}, True),
        ({"phase": "Succeeded"}, False),
        ({"marks": {COMPUTE_NODE_ANNOTATION: ""}}, False),
        ({"marks": {UID_ANNOTATION: "an-earlier-one"}}, False),
    ],
    ids=["runs", "ends", "ended", "not placed", "another's"],
)
def test_what_stands_below_for_a_pod(other: dict[str, Any], stands: bool) -> None:
    made = Made()
    assert not made.part.runs_arbiter_placed(above())
    made.pods.put_below(below(**other))
    assert made.part.runs_arbiter_placed(above()) is stands


# -- the book ----------------------------------------------------------------------------------------------------------


def test_what_was_said_is_forgotten_by_uid() -> None:
    book = VerdictStore()
    book.verdicts["u1"] = Verdict(said=VerdictState.ADMITTED, pool=POOL, node="n", borrowed=True, since=0.0)
    book.forget_pod("u2")
    assert "u1" in book.verdicts
    book.forget_pod("u1")
    book.forget_pod("u1")
    assert book.verdicts == {}
