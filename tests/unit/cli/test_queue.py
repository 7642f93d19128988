"""Tests of `vkgateway queue` and `explain`, from the gateway's state and from a tenant's pods."""

from __future__ import annotations

import base64
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.fakes.apiserver import FakeApiServer
from tests.unit.cli.gateway import GPU, NOON, Cli, gang, pool
from vkgateway.api.names import tenant_secret_name
from vkgateway.cli.explanation import explain_pod
from vkgateway.kube.resources import KNOWN_RESOURCES, PODS, SECRETS, TENANTS, Resource
from vkgateway.scheduler.core.decisions import PendingReason
from vkgateway.scheduler.core.reasons.advice import ADVICE
from vkgateway.scheduler.core.reasons.report_types import ArbiterReport, GangReport, ShareReport

ROOM = "needs 2 pods of nvidia.com/gpu 8; 0 of 2 would fit now"
STANDING = f"{ROOM}; place 2 in a100.local; expected start between 13:00 and 13:40 UTC"
STATE = ArbiterReport(
    time=NOON,
    pools=(pool(),),
    gangs=(
        gang("beta/ns/gang/second", place=2, behind="alpha/ns/gang/first", code="BehindReservation"),
        gang("alpha/ns/gang/first", likely=NOON + 1800),
        gang("alpha/ns/gang/never", place=0, code="Infeasible", earliest=None, likely=None),
        gang("alpha/ns/gang/runs", state="running", placed=2, code="", message="", place=0),
        gang("alpha/other/gang/v", pool="v100.local", pools=["v100.local"]),
    ),
)
GROWS: GangReport = gang(
    "beta/ns/podgroup/grows",
    state="running",
    pods=5,
    placed=3,
    place=0,
    units=40,
    waitingUnits=16,
    since=NOON - 9000,
    message="runs with 3 of 5 pods; no capacity is free for more",
)


@pytest.fixture
def cli(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> Cli:
    return Cli(tmp_path, capsys)


@pytest.fixture
async def server() -> AsyncIterator[FakeApiServer]:
    async with FakeApiServer() as found:
        for resource in KNOWN_RESOURCES.values():
            if resource.prefix.startswith("apis/vkgateway.io/"):
                found.unregister(resource)
        yield found


@pytest.mark.parametrize("command", [("queue",), ("explain", "web")])
async def test_kubeconfig_of_the_management_cluster_is_refused(cli: Cli, command: tuple[str, ...]) -> None:
    async with FakeApiServer() as management:
        assert await cli(*command, "--kubeconfig", str(cli.kubeconfig(management.url))) == 2
        assert f"{management.url} is the management cluster, not a tenant's" in cli.err
        assert "--tenant NAME" in cli.err


def pod(name: str, *, gpus: int = 8, gang_name: str = "", **fields: Any) -> dict[str, Any]:
    annotations = {"vkgateway.io/gang": gang_name, "vkgateway.io/gang-min": "2"} if gang_name else {}
    found: dict[str, Any] = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "ns", "annotations": annotations},
        "spec": {
            "schedulingGates": [{"name": "vkgateway.io/admission"}],
            "containers": [{"name": "c", "resources": {"limits": {GPU: str(gpus)}}}] if gpus else [],
        },
        "status": {"phase": "Pending"},
    }
    for part, values in fields.items():
        found[part] = {**found[part], **values}
    return found


def put(server: FakeApiServer, made: dict[str, Any]) -> None:
    server.store.create(PODS, made)
    name = made["metadata"]["name"]
    found = server.store.get(PODS, name, namespace="ns")
    server.store.update(PODS, found | {"status": made["status"]}, name=name, namespace="ns", status=True)


def waits(reason: str = "WaitingForRoom", message: str = STANDING) -> dict[str, Any]:
    admitted = {"type": "vkgateway.io/Admitted", "status": "False", "reason": reason, "message": message}
    return {"phase": "Pending", "conditions": [admitted]}


# From the gateway's state


async def test_queue_is_listed_in_queue_order(cli: Cli) -> None:
    async with cli.gateway(STATE):
        assert await cli("queue", "-o", "name") == 0, cli.err
        assert cli.out.split() == ["ns/first", "ns/second", "ns/never", "other/v"]
        assert await cli("queue") == 0
        titles, first, *_ = cli.out.splitlines()
        assert titles.split()[:3] == ["POOL", "POSITION", "TENANT"]
        assert first.split()[:5] == ["a100.local", "1", "alpha", "ns", "first"]
        assert "at about 12:30 UTC" in first
        assert ROOM in first
        assert await cli("queue", "--tenant", "beta", "-o", "json") == 0
        (gang,) = json.loads(cli.out)
        assert (gang["behind"], gang["asks"], gang["pods"]) == ("alpha/ns/gang/first", f"{GPU} 16", 2)
        assert (gang["since"], gang["running"]) == ("2026-11-21T11:55:00Z", 0)


async def test_partly_running_gang_is_distinguished_from_waiting_gang(cli: Cli) -> None:
    async with cli.gateway(msgspec.structs.replace(STATE, gangs=(GROWS, *STATE.gangs))):
        assert await cli("queue", "-o", "name") == 0, cli.err
        assert cli.out.split() == ["ns/first", "ns/second", "ns/never", "other/v", "ns/grows"]
        assert await cli("queue", "--tenant", "beta") == 0
        titles, second, grows = cli.out.splitlines()
        where = titles.index("RUNNING") + len("RUNNING")
        assert [line[:where].split()[-2:] for line in (second, grows)] == [["2", "-"], ["2", "3"]]
        assert "runs with 3 of 5 pods" in grows
        assert await cli("queue", "--tenant", "beta", "-o", "json") == 0
        *_, gang = json.loads(cli.out)
        assert (gang["pods"], gang["running"], gang["asks"]) == (2, 3, f"{GPU} 16")
        assert (gang["pool"], gang["place"], gang["since"]) == ("a100.local", 0, "")


SHARES = msgspec.structs.replace(
    STATE,
    half_life=86_400.0,
    shares=(
        ShareReport(tenant="alpha", pool="a100.local", weight=2.0, now=0.25, past=0.75, at=NOON),
        ShareReport(tenant="beta", pool="a100.local", weight=1.0, now=0.1, past=0.2, at=NOON),
    ),
)


async def test_queue_shows_both_parts_of_fair_shares(cli: Cli) -> None:
    async with cli.gateway(SHARES):
        assert await cli("queue", "--pool", "a100") == 0
    rows = cli.out.splitlines()
    assert "FAIR SHARE" in rows[0]
    assert "(0.250 + 0.750 past) / 2" in rows[1]
    assert "0.100 + 0.200 past" in rows[2]
    async with cli.gateway(SHARES):
        assert await cli("queue", "-o", "json") == 0
    assert [gang["share"] and gang["share"]["past"] for gang in json.loads(cli.out)][:2] == [0.75, 0.2]


async def test_queue_shows_no_fair_share_without_half_life(cli: Cli) -> None:
    async with cli.gateway(STATE):
        assert await cli("queue") == 0
    assert "FAIR SHARE" not in cli.out


def test_fair_share_is_explained() -> None:
    waiting, mine = gang("beta/ns/pod/u1", place=1), pod("train-0", metadata={"uid": "u1"}, status=waits())
    state = msgspec.structs.replace(SHARES, gangs=(waiting,))
    found = explain_pod(mine, [], state=state, tenant="beta")
    assert found.share == (
        "0.100 + 0.200 past: 67% of it is from the past; half of that is forgiven by 2026-11-22T12:00:00Z if the "
        "tenant borrows nothing until then; 0 of 1 other tenants have less"
    )
    without = explain_pod(mine, [], state=msgspec.structs.replace(STATE, gangs=(waiting,)), tenant="beta")
    assert without.share == ""


@pytest.mark.parametrize(
    ("line", "names"),
    [
        (("--pool", "a100"), ["ns/first", "ns/second", "ns/never"]),
        (("--pool", "v100.local"), ["other/v"]),
        (("-n", "other"), ["other/v"]),
        (("--tenant", "alpha", "--namespace", "third"), []),
    ],
)
async def test_queue_can_be_filtered(cli: Cli, line: tuple[str, ...], names: list[str]) -> None:
    async with cli.gateway(STATE):
        assert await cli("queue", *line, "-o", "name") == 0
    assert cli.out.split() == names


async def test_empty_queue_prints_note(cli: Cli) -> None:
    async with cli.gateway(ArbiterReport(time=NOON)):
        assert await cli("queue") == 0
    assert (cli.out, cli.err) == ("", "No gangs are pending.\n")


# From a tenant's pods


async def test_tenant_sees_its_queue(cli: Cli, server: FakeApiServer) -> None:
    put(server, pod("train-0", gang_name="x", status=waits()))
    put(server, pod("train-1", gang_name="x", status=waits()))
    put(server, pod("alone", gpus=1, status=waits("Infeasible", "needs more")))
    put(server, pod("silent", gpus=1))
    put(server, pod("runs", gpus=1, status={"phase": "Running"}))
    file = str(cli.kubeconfig(server.url))

    assert await cli("queue", "--kubeconfig", file, "-o", "json") == 0, cli.err

    first, second = json.loads(cli.out)
    assert (first["namespace"], first["name"], first["pods"], first["asks"]) == ("ns", "x", 2, f"{GPU} 16")
    assert (first["place"], first["pool"], first["expected"]) == (2, "a100.local", "between 13:00 and 13:40 UTC")
    assert (first["message"], first["code"], first["band"]) == (ROOM, "WaitingForRoom", "guaranteed")
    assert (second["name"], second["place"], second["pool"], second["expected"]) == ("alone", 0, "", "")
    assert await cli("queue", "--kubeconfig", file) == 0
    assert "TENANT" not in cli.out
    assert await cli("queue", "--kubeconfig", file, "--pool", "v100") == 0
    assert "No gangs are pending" in cli.err
    assert all(request.startswith("GET ") for request in server.requests)


async def test_tenant_sees_waiting_pods_of_running_gang(cli: Cli, server: FakeApiServer) -> None:
    let_go: dict[str, Any] = {"schedulingGates": [], "nodeName": "a100.local"}
    message = "runs with 2 of 3 pods; no capacity is free for more"
    put(server, pod("grow-0", gang_name="grows", spec=let_go, status={"phase": "Running"}))
    put(server, pod("grow-1", gang_name="grows", spec=let_go))
    put(server, pod("grow-2", gang_name="grows", status=waits(message=message)))
    put(server, pod("grow-3", gang_name="grows", spec=let_go, status={"phase": "Succeeded"}))
    put(server, pod("helper", gpus=0, gang_name="new", spec={"schedulingGates": []}, status={"phase": "Running"}))
    put(server, pod("new-0", gang_name="new", status=waits()))
    file = str(cli.kubeconfig(server.url))

    assert await cli("queue", "--kubeconfig", file, "-o", "json") == 0, cli.err

    new, grows = json.loads(cli.out)
    assert (new["name"], new["pods"], new["running"]) == ("new", 1, 1), "pods of a gang count without devices, too"
    assert (grows["name"], grows["pods"], grows["running"], grows["pool"]) == ("grows", 1, 2, "a100.local")
    assert (grows["place"], grows["message"], grows["asks"]) == (0, message, f"{GPU} 8")


async def test_running_pods_are_read_only_in_namespaces_with_waiting_gangs(cli: Cli, server: FakeApiServer) -> None:
    put(server, pod("alone", gpus=1, status=waits()))
    put(server, pod("runs", gpus=1, status={"phase": "Running"}))
    assert await cli("queue", "--kubeconfig", str(cli.kubeconfig(server.url))) == 0, cli.err
    assert not [request for request in server.requests if "Running" in request]
    put(server, pod("train-0", gang_name="x", status=waits()))
    assert await cli("queue", "--kubeconfig", str(cli.kubeconfig(server.url))) == 0, cli.err
    assert [request for request in server.requests if "Running" in request]


async def test_kubeconfig_and_tenant_exclude_each_other(cli: Cli, server: FakeApiServer) -> None:
    assert await cli("queue", "--kubeconfig", str(cli.kubeconfig(server.url)), "--tenant", "alpha") == 2


async def test_unreachable_tenant_is_an_error(cli: Cli) -> None:
    assert await cli("queue", "--kubeconfig", str(cli.kubeconfig("http://127.0.0.1:1"))) == 5
    assert "is unreachable" in cli.err
    assert await cli("queue", "--kubeconfig", str(cli.folder / "none")) == 2


async def test_forbidden_pod_list_is_an_error(cli: Cli, server: FakeApiServer) -> None:
    server.fail("GET", "/pods", status=403, times=9)
    assert await cli("queue", "--kubeconfig", str(cli.kubeconfig(server.url))) == 5
    assert "-n NAMESPACE" in cli.err


# Explain


async def test_pod_with_unserved_mark_is_ungoverned(cli: Cli, server: FakeApiServer) -> None:
    labels = {"scheduling.x-k8s.io/pod-group": "web"}
    put(server, pod("web", gpus=0, metadata={"labels": labels}, spec={"schedulingGates": []}))
    line = ("explain", "web", "-n", "ns", "--kubeconfig", str(cli.kubeconfig(server.url)), "-o", "json")
    assert await cli(*line) == 0, cli.err
    explanation = json.loads(cli.out)
    assert (explanation["state"], explanation["band"], explanation["gang"]) == ("ungoverned", "", None)
    assert "the gang mark of a kind that this cluster does not serve" in explanation["summary"]

    server.register(Resource("apis/scheduling.x-k8s.io/v1alpha1", "podgroups", "PodGroup"))
    assert await cli(*line) == 0, cli.err
    explanation = json.loads(cli.out)
    assert (explanation["state"], explanation["gang"]["way"]) == ("starting", "coscheduling PodGroup")


async def test_hidden_discovery_does_not_fail_explain(cli: Cli, server: FakeApiServer) -> None:
    put(server, pod("web", gpus=0, metadata={"labels": {"scheduling.x-k8s.io/pod-group": "web"}}))
    server.fail("GET", "/customresourcedefinitions/", status=403, reason="Forbidden")
    file = str(cli.kubeconfig(server.url))
    assert await cli("explain", "web", "-n", "ns", "--kubeconfig", file, "-o", "json") == 0, cli.err
    assert json.loads(cli.out)["gang"]["way"] == "coscheduling PodGroup"


async def test_waiting_pod_is_explained(cli: Cli, server: FakeApiServer) -> None:
    put(server, pod("train-0", gang_name="x", status=waits()))
    put(server, pod("train-1", gang_name="x", spec={"schedulingGates": []}, status={"phase": "Running"}))
    put(server, pod("train-2", gang_name="x"))  # just created
    put(server, pod("train-9", gang_name="x", status={"phase": "Failed"}))
    file = str(cli.kubeconfig(server.url))

    assert await cli("explain", "train-0", "-n", "ns", "--kubeconfig", file) == 0, cli.err

    facts = dict(line.split(":", 1) for line in cli.out.splitlines() if ":" in line)
    assert facts["State"].strip() == "waiting"
    assert facts["Requests"].strip() == f"{GPU} 8"
    assert facts["Reason"].strip() == "WaitingForRoom"
    assert facts["Message"].strip() == ROOM
    assert facts["Queue position"].strip() == "2 in a100.local"
    assert facts["Expected start"].strip() == "between 13:00 and 13:40 UTC"
    assert "3 pods, 2 waiting, 1 running, at least 2 start together" in facts["Gang"]
    assert facts["What helps"].strip() == ADVICE[PendingReason.ROOM]
    assert "Pool" not in facts


async def test_admitted_unbound_pod_waits_for_scheduler(cli: Cli, server: FakeApiServer) -> None:
    let_go = pod("free", status={"phase": "Pending"})
    let_go["spec"].pop("schedulingGates", None)
    put(server, let_go)
    assert await cli("explain", "free", "-n", "ns", "--kubeconfig", str(cli.kubeconfig(server.url))) == 0, cli.err
    assert "the tenant's scheduler binds it now" in cli.out


JOBSETS = Resource("apis/jobset.x-k8s.io/v1alpha2", "jobsets", "JobSet")


def of_a_job(job: str, index: int = 0) -> dict[str, Any]:
    """Return a waiting pod of a JobSet whose Jobs start in sequence."""
    labels = {"jobset.sigs.k8s.io/jobset-name": "set", "jobset.sigs.k8s.io/replicatedjob-name": job}
    return pod(f"set-{job}-0-{index}", metadata={"labels": labels}, status=waits())


async def test_companion_object_defines_gang_and_min_members(cli: Cli, server: FakeApiServer) -> None:
    jobs = [
        {"name": name, "template": {"spec": {"parallelism": count}}} for name, count in (("driver", 1), ("worker", 2))
    ]
    spec = {"replicatedJobs": jobs, "startupPolicy": {"startupPolicyOrder": "InOrder"}}
    for made in (of_a_job("driver"), of_a_job("worker"), of_a_job("worker", 1)):
        put(server, made)
    asked = ("explain", "set-worker-0-1", "-n", "ns", "--kubeconfig", str(cli.kubeconfig(server.url)), "-o", "json")

    assert await cli(*asked) == 0, cli.err
    gang = json.loads(cli.out)["gang"]
    assert (gang["name"], gang["minimum"], gang["pods"]) == ("set", None, 3), "the kind is unknown"

    server.register(JOBSETS)
    server.store.create(JOBSETS, {"metadata": {"name": "set", "namespace": "ns"}, "spec": spec})
    assert await cli(*asked) == 0, cli.err
    gang = json.loads(cli.out)["gang"]
    assert (gang["name"], gang["minimum"], gang["pods"]) == ("set/worker", 2, 2)
    assert await cli("queue", *asked[-4:]) == 0, cli.err
    assert [(each["name"], each["pods"]) for each in json.loads(cli.out)] == [("set/driver", 1), ("set/worker", 2)]

    server.fail("GET", "/jobsets", status=403, times=9)
    assert await cli(*asked) == 0, "who may read pods alone is told what these say"
    assert json.loads(cli.out)["gang"]["minimum"] is None


GROUPS = Resource("apis/scheduling.k8s.io/v1alpha2", "podgroups", "PodGroup")


async def test_pods_with_several_companion_objects_count_in_their_gang(cli: Cli, server: FakeApiServer) -> None:
    """Kubernetes makes a PodGroup for one of a JobSet's two Jobs; all pods are one gang."""
    entries = [{"name": name, "template": {"spec": {"parallelism": 1}}} for name in ("driver", "worker")]
    server.register(JOBSETS)
    server.register(GROUPS)
    server.store.create(JOBSETS, {"metadata": {"name": "set", "namespace": "ns"}, "spec": {"replicatedJobs": entries}})
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "set-worker-0", "uid": "u", "controller": True}
    group = {"metadata": {"name": "g", "namespace": "ns", "ownerReferences": [owner]}}
    server.store.create(GROUPS, group | {"spec": {"schedulingPolicy": {"gang": {"minCount": 1}}}})
    worker = of_a_job("worker")
    worker["metadata"]["ownerReferences"] = [owner]
    worker["spec"] |= {"schedulingGates": [], "schedulingGroup": {"podGroupName": "g"}}
    put(server, worker | {"status": {"phase": "Running"}})
    put(server, of_a_job("driver"))
    line = ("-n", "ns", "--kubeconfig", str(cli.kubeconfig(server.url)), "-o", "json")

    assert await cli("queue", *line) == 0, cli.err
    assert [(each["name"], each["pods"], each["running"]) for each in json.loads(cli.out)] == [("set", 1, 1)]
    assert await cli("explain", "set-driver-0-0", *line) == 0, cli.err
    facts = json.loads(cli.out)["gang"]
    assert (facts["name"], facts["minimum"], facts["pods"], facts["running"]) == ("set", 2, 2, 1)


@pytest.mark.parametrize(
    ("made", "state", "words"),
    [
        (pod("p"), "waiting", "has not decided yet"),
        (pod("p", gpus=0, spec={}), "ungoverned", "starts without the arbiter"),
        (pod("p", spec={"schedulingGates": []}), "starting", "admitted"),
        (pod("p", spec={"schedulingGates": []}, status={"phase": "Running"}), "running", "The pod is running."),
        (pod("p", status={"phase": "Succeeded"}), "ended", "Succeeded"),
    ],
)
async def test_every_state_is_explained(
    cli: Cli, server: FakeApiServer, made: dict[str, Any], state: str, words: str
) -> None:
    put(server, made)
    file = str(cli.kubeconfig(server.url))
    assert await cli("explain", "p", "-n", "ns", "--kubeconfig", file, "-o", "json") == 0, cli.err
    explanation = json.loads(cli.out)
    assert explanation["state"] == state
    assert words in explanation["summary"]


async def test_eviction_is_explained_with_deadline_and_afterwards(cli: Cli, server: FakeApiServer) -> None:
    disrupted = {"type": "DisruptionTarget", "status": "True", "reason": "PreemptionByVkgateway", "message": "room"}
    marks = {"annotations": {"vkgateway.io/eviction-deadline": "2026-11-21T12:00:30Z"}}
    put(server, pod("going", metadata=marks, status={"phase": "Running", "conditions": [disrupted]}))
    put(server, pod("gone", status={"phase": "Failed", "conditions": [disrupted]}))
    file = str(cli.kubeconfig(server.url))
    assert await cli("explain", "going", "-n", "ns", "--kubeconfig", file) == 0
    assert "The arbiter evicts the pod" in cli.out
    assert "Deleted at:     2026-11-21T12:00:30Z" in cli.out
    assert await cli("explain", "gone", "-n", "ns", "--kubeconfig", file) == 0
    assert "The arbiter evicted the pod" in cli.out


async def test_invalid_marks_do_not_fail_explain(cli: Cli, server: FakeApiServer) -> None:
    bad = {"annotations": {"vkgateway.io/gang-min": "many"}}
    put(server, pod("p", metadata=bad, status=waits("Invalid", "gang-min is 'many'")))
    file = str(cli.kubeconfig(server.url))
    assert await cli("explain", "p", "-n", "ns", "--kubeconfig", file) == 0, cli.err
    assert ADVICE[PendingReason.INVALID] in cli.out


async def test_gateway_adds_facts_for_admins(cli: Cli, server: FakeApiServer) -> None:
    server.register(TENANTS)
    put(server, pod("p", gang_name="second", status=waits()))
    document = cli.kubeconfig(server.url).read_bytes()
    cli.kubeconfig(server.url, "compute.kubeconfig")
    server.store.create(TENANTS, {"metadata": {"name": "beta"}, "spec": {}})
    data = {"kubeconfig": base64.b64encode(document).decode()}
    secret = {"metadata": {"name": tenant_secret_name("beta"), "namespace": "vkgateway-system"}, "data": data}
    server.store.create(SECRETS, secret)
    async with cli.gateway(STATE):
        assert await cli("explain", "p", "-n", "ns", "--tenant", "beta") == 0, cli.err
    assert "alpha/ns/gang/first" in cli.out
    assert "24 nvidia.com/gpu, 8 used inside guarantees, 6 borrowed, 9.5 free" in cli.out
    cli.configure(observability={"port": 1})
    assert await cli("explain", "p", "-n", "ns", "--tenant", "beta") == 0
    assert "Explained without the gateway" in cli.err
    assert "alpha" not in cli.out
    assert await cli("explain", "p", "--tenant", "beta") == 3
    assert await cli("explain", "p", "--tenant", "gamma") == 3
    assert await cli("explain", "p") == 2


def test_every_reason_has_help() -> None:
    assert ADVICE.keys() == set(PendingReason)


@pytest.mark.parametrize(
    ("line", "says"),
    [
        (("--tenant", "gamma"), "tenant 'gamma' does not exist"),
        (("--pool", "h100"), "pool 'h100' does not exist"),
    ],
)
async def test_unknown_tenant_or_pool_is_an_error(cli: Cli, line: tuple[str, ...], says: str) -> None:
    async with cli.gateway(STATE):
        assert await cli("queue", *line) == 3
    assert says in cli.err
    assert "Available " in cli.err
