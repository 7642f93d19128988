"""Whatever a tenant's pod and a compute pod's status hold: translation never fails, leaks, mutates or wavers."""

import copy
from collections.abc import Iterator
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.fakes.patches import apply_strategic_patch
from tests.unit.translate import samples
from vkgateway.api.names import GROUP
from vkgateway.api.objects import Object
from vkgateway.kinds.context import TenantContext
from vkgateway.kinds.metadata import LABEL_DOMAIN
from vkgateway.kinds.pods.policy.rules import find_refusals
from vkgateway.kinds.pods.policy.security import find_violations
from vkgateway.kinds.pods.translation.pod_diff import diff_pods
from vkgateway.kinds.pods.translation.pod_references import find_references
from vkgateway.kinds.pods.translation.to_compute import forward_pod
from vkgateway.kinds.pods.translation.to_tenant import Disruption, final_status, mirror_status

patient = settings(max_examples=60, deadline=None)
NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
HOST, BELOW, COMPUTE_UID = "gpu-host-17", "alpha--default", "c0ffee00-1234"
OTHERS = "beta--prod/trainer-0"
"""Another tenant's pod, as a scheduler of the compute cluster might name it."""
STAYING = ("kueue.x-k8s.io/", "kubectl.kubernetes.io/")
HIDDEN = (HOST, BELOW, COMPUTE_UID, OTHERS, "/var/lib", "192.0.2")

words = st.sampled_from(["a", "b", "web", "x-y", "z.w"])
values = st.text(max_size=8)
keys = st.one_of(
    words,
    words.map(lambda word: f"example.com/{word}"),
    st.sampled_from(["kueue.x-k8s.io/queue-name", "kubectl.kubernetes.io/last-applied-configuration"]),
    st.sampled_from(["kubernetes.io/hostname", "type", "zone", "vkgateway.io/pool", "platform.vkgateway.io/pool"]),
)
maps = st.dictionaries(keys, values, max_size=4)
unknown = st.dictionaries(st.sampled_from(["nextYear", "yearAfter"]), st.integers() | values, max_size=2)


def merged(*parts: st.SearchStrategy[Object]) -> st.SearchStrategy[Object]:
    """Dictionaries put together from several strategies."""
    return st.tuples(*parts).map(lambda chosen: {key: value for part in chosen for key, value in part.items()})


def some(**fields: st.SearchStrategy[Any]) -> st.SearchStrategy[Object]:
    """Dictionaries with any of the fields."""
    return st.fixed_dictionaries({}, optional=dict(fields))


def listed(items: st.SearchStrategy[Any], most: int = 3) -> st.SearchStrategy[list[Any]]:
    return st.lists(items, max_size=most)


field_paths = st.sampled_from(
    [
        "metadata.name",
        "metadata.namespace",
        "metadata.uid",
        "metadata.labels['a']",
        "metadata.labels['vkgateway.io/tenant']",
        "spec.nodeName",
        "spec.serviceAccountName",
        "status.podIP",
        "metadata.annotations['example.com/web']",
        "metadata.labels['kueue.x-k8s.io/queue-name']",
        "metadata.annotations['kubectl.kubernetes.io/last-applied-configuration']",
    ]
)
field_refs = st.builds(lambda path: {"apiVersion": "v1", "fieldPath": path}, field_paths)
names = st.sampled_from(["one", "two", "kube-root-ca.crt"])
env_sources = st.one_of(
    st.builds(lambda ref: {"fieldRef": ref}, field_refs),
    st.builds(lambda name: {"configMapKeyRef": {"name": name, "key": "k"}}, names),
    st.builds(
        lambda name, optional: {"secretKeyRef": {"name": name, "key": "k", "optional": optional}}, names, st.booleans()
    ),
    st.just({"resourceFieldRef": {"resource": "limits.cpu"}}),
)
env_names = words | st.just("KUBERNETES_SERVICE_HOST")
variables = st.one_of(
    st.builds(lambda name, value: {"name": name, "value": value}, env_names, values),
    st.builds(lambda name, source: {"name": name, "valueFrom": source}, env_names, env_sources),
)
contexts = some(
    privileged=st.booleans(),
    runAsUser=st.integers(0, 2),
    runAsNonRoot=st.booleans(),
    capabilities=some(add=listed(st.sampled_from(["CHOWN", "NET_ADMIN"])), drop=listed(st.just("ALL"))),
    seccompProfile=st.builds(lambda kind: {"type": kind}, st.sampled_from(["Unconfined", "RuntimeDefault"])),
    seLinuxOptions=some(type=words, user=words),
)
containers = merged(
    st.builds(lambda name: {"name": name, "image": "busybox"}, words),
    some(
        env=listed(variables),
        envFrom=listed(st.builds(lambda name: {"configMapRef": {"name": name}}, names)),
        securityContext=contexts,
        resources=some(requests=st.dictionaries(words, st.sampled_from(["1", "500m", 2]), max_size=2)),
    ),
    unknown,
)
downward_paths = (
    st.sampled_from(["metadata.labels", "metadata.annotations", "metadata.namespace", "metadata.name"]) | field_paths
)
downward = st.builds(
    lambda paths: {"items": [{"path": path, "fieldRef": {"fieldPath": path}} for path in paths]}, listed(downward_paths)
)
projections = st.one_of(
    st.builds(
        lambda seconds: {"serviceAccountToken": {"path": "t", "expirationSeconds": seconds}}, st.integers(600, 7200)
    ),
    st.builds(lambda name: {"configMap": {"name": name}}, names),
    st.builds(lambda name: {"secret": {"name": name}}, names),
    st.builds(lambda source: {"downwardAPI": source}, downward),
    st.just({"podCertificate": {}}),
)
volume_sources = st.one_of(
    st.just({"emptyDir": {}}),
    st.just({"hostPath": {"path": "/"}}),
    st.builds(lambda name: {"configMap": {"name": name}}, names),
    st.builds(lambda name: {"secret": {"secretName": name}}, names),
    st.builds(lambda source: {"downwardAPI": source}, downward),
    st.builds(lambda sources: {"projected": {"sources": sources}}, listed(projections)),
    st.builds(lambda what: {"volumeOfNextYear": what}, values),
)
volumes = merged(st.builds(lambda name: {"name": name}, words), volume_sources)
operators = st.sampled_from(["In", "NotIn", "Exists", "DoesNotExist", "Gt", "Lt"])
requirements = st.builds(
    lambda key, operator, wanted: {"key": key, "operator": operator, "values": wanted},
    keys,
    operators,
    listed(words, 2),
)
node_terms = some(
    matchExpressions=listed(requirements), matchFields=st.just([{"key": "metadata.name", "operator": "Exists"}])
)
selectors = some(matchLabels=maps, matchExpressions=listed(requirements))
pod_terms = merged(
    st.builds(lambda key: {"topologyKey": key}, keys),
    some(
        labelSelector=selectors,
        namespaces=listed(words),
        namespaceSelector=selectors,
        matchLabelKeys=listed(keys),
        mismatchLabelKeys=listed(keys),
    ),
)
spread_terms = pod_terms.map(
    lambda term: {key: value for key, value in term.items() if not key.startswith(("namespace", "mismatch"))}
)
REQUIRED, PREFERRED = (
    "requiredDuringSchedulingIgnoredDuringExecution",
    "preferredDuringSchedulingIgnoredDuringExecution",
)
pod_affinity = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: listed(pod_terms, 2),
        PREFERRED: listed(st.builds(lambda term: {"weight": 1, "podAffinityTerm": term}, pod_terms), 2),
    },
)
node_affinity = st.fixed_dictionaries(
    {},
    optional={
        REQUIRED: st.builds(lambda terms: {"nodeSelectorTerms": terms}, listed(node_terms)),
        PREFERRED: listed(st.builds(lambda term: {"weight": 1, "preference": term}, node_terms), 2),
    },
)
tolerations = some(
    key=keys, operator=st.sampled_from(["Exists", "Equal"]), effect=st.sampled_from(["NoSchedule", "NoExecute"])
)
specs = merged(
    st.builds(lambda chosen: {"containers": chosen}, st.lists(containers, min_size=1, max_size=2)),
    some(
        initContainers=listed(containers, 1),
        ephemeralContainers=listed(containers, 1),
        volumes=listed(volumes),
        nodeSelector=maps,
        affinity=some(nodeAffinity=node_affinity, podAffinity=pod_affinity, podAntiAffinity=pod_affinity),
        topologySpreadConstraints=listed(spread_terms, 2),
        tolerations=listed(tolerations),
        hostNetwork=st.booleans(),
        runtimeClassName=words,
        imagePullSecrets=listed(st.builds(lambda name: {"name": name}, names)),
        readinessGates=listed(st.builds(lambda kind: {"conditionType": kind}, words)),
        hostAliases=listed(st.just({"ip": "1.2.3.4", "hostnames": ["x"]}), 1),
        dnsPolicy=st.sampled_from(["ClusterFirst", "Default", "None"]),
        dnsConfig=some(nameservers=listed(st.just("1.1.1.1"), 1), searches=listed(words), options=st.just([])),
        subdomain=words,
        enableServiceLinks=st.booleans(),
        overhead=st.just({"cpu": "1"}),
        schedulerName=words,
        priorityClassName=st.sampled_from(["system-node-critical", "own"]),
        securityContext=contexts,
        resourceClaims=st.just([{"name": "gpu"}]),
    ),
    unknown,
)
metadata = some(labels=maps, annotations=maps)
pods = st.builds(
    lambda given, spec, scheduled: samples.pod(
        metadata=given, status=None if scheduled else {"phase": "Pending"}, **spec
    ),
    metadata,
    specs,
    st.booleans(),
)
levels = st.sampled_from(["privileged", "baseline", "restricted"])
tenants = st.builds(
    lambda level, servers: TenantContext(
        name="alpha", api_host="10.0.0.1", api_port=6443, pod_security=level, dns_servers=servers
    ),
    levels,
    st.sampled_from([(), ("10.96.0.10",)]),
)

messages = st.lists(
    st.sampled_from(
        [
            HOST,
            BELOW,
            COMPUTE_UID,
            OTHERS,
            "192.0.2.17",
            "pod=web_",
            "(",
            ")",
            " ",
            ": ",
            "/var/lib/kubelet/pods/x",
            "words",
            "/",
        ]
    ),
    max_size=6,
).map(" ".join)
kinds = st.sampled_from(
    ["Ready", "ContainersReady", "Initialized", "PodScheduled", "DisruptionTarget", "own.example/x", "abc"]
)
conditions = st.lists(
    merged(
        st.builds(lambda kind, status: {"type": kind, "status": status}, kinds, st.sampled_from(["True", "False"])),
        some(reason=words, message=messages, observedGeneration=st.integers(1, 3), lastTransitionTime=st.just("t")),
    ),
    max_size=4,
    unique_by=lambda entry: entry["type"],
)
container_states = st.dictionaries(
    st.sampled_from(["waiting", "running", "terminated"]), some(message=messages, reason=words), max_size=1
)
told = st.dictionaries(
    st.sampled_from(["nextYear", "yearAfter"]), messages | st.lists(messages, max_size=1), max_size=2
)
container_statuses = listed(
    merged(st.just({"name": "a"}), some(state=container_states, lastState=container_states), told), 2
)
phases = st.sampled_from(["Pending", "Running", "Succeeded", "Failed", "Unknown"])
compute_statuses = merged(
    some(
        phase=phases,
        conditions=conditions,
        message=messages,
        reason=words,
        podIP=st.just("10.1.2.3"),
        hostIPs=st.just([{"ip": "192.0.2.17"}]),
        nominatedNodeName=st.just(HOST),
        containerStatuses=container_statuses,
        initContainerStatuses=container_statuses,
        ephemeralContainerStatuses=container_statuses,
        qosClass=st.just("Guaranteed"),
        observedGeneration=st.integers(1, 9),
    ),
    told,
    st.just({"hostIP": "192.0.2.17"}),
)
tenant_statuses = some(
    phase=phases,
    conditions=conditions,
    qosClass=st.just("BestEffort"),
    reason=words,
    podIP=st.just("10.9.9.9"),
    hostIP=st.just("10.213.0.1"),
)


amounts = some(
    requests=st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["1", "500m", "1Gi"])),
    limits=st.dictionaries(st.sampled_from(["cpu", "memory"]), st.sampled_from(["2", "2000m"])),
)
changed = some(
    image=st.sampled_from(["busybox:1", "busybox:2"]),
    resources=amounts,
    labels=maps,
    annotations=maps,
    ephemeralContainers=st.lists(containers, max_size=2, unique_by=lambda container: container["name"]),
    activeDeadlineSeconds=st.integers(1, 9),
    tolerations=listed(tolerations, 2),
)


def after(pod: Object, change: Object) -> Object:
    """The pod once what may change of a running one has changed; containers have names of their own."""
    made = copy.deepcopy(pod)
    spec = made["spec"]
    for kind in ("containers", "initContainers"):
        given_now = {key: change[key] for key in ("image", "resources") if key in change}
        if kind in spec:
            spec[kind] = [one | {"name": f"{kind.lower()}-{at}"} | given_now for at, one in enumerate(spec[kind])]
    spec["ephemeralContainers"] = change.get("ephemeralContainers", [])
    spec["tolerations"] = [*spec.get("tolerations", []), *change.get("tolerations", [])]
    if "activeDeadlineSeconds" in change:
        spec["activeDeadlineSeconds"] = change["activeDeadlineSeconds"]
    made["metadata"] |= {kind: change[kind] for kind in ("labels", "annotations") if kind in change}
    return made


def walk(value: Any) -> Iterator[Any]:
    """A value and everything in it."""
    yield value
    for inner in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(inner)


@patient
@given(pods, tenants)
def test_any_pod_is_checked_and_forwarded(pod: Object, tenant: TenantContext) -> None:
    before = copy.deepcopy(pod)
    for refusal in find_refusals(pod, tenant=tenant, pool=samples.POOL):
        assert refusal.field
        assert refusal.message
        assert " " not in refusal.rule
    find_references(pod)
    labels = {"default": {"a": "b"}, "web": {}}
    forward_pod(pod, tenant=tenant, pool=samples.POOL, namespace=BELOW, namespaces=lambda: labels)
    made = forward_pod(pod, tenant=tenant, pool=samples.POOL, namespace=BELOW)
    assert pod == before
    assert made == forward_pod(pod, tenant=tenant, pool=samples.POOL, namespace=BELOW)


@patient
@given(pods)
def test_unknown_fields_survive(pod: Object) -> None:
    made = samples.forward(pod)["spec"]
    for name in ("nextYear", "yearAfter"):
        assert made.get(name) == pod["spec"].get(name)
        for kind in ("containers", "initContainers"):
            given_values = [container.get(name) for container in pod["spec"].get(kind, ())]
            assert [container.get(name) for container in made.get(kind, ())] == given_values
    assert [v for v in made["volumes"] if "volumeOfNextYear" in v] == [
        v for v in pod["spec"]["volumes"] if "volumeOfNextYear" in v
    ]


@patient
@given(pods)
def test_compute_pod_is_confined_to_pool_and_tenant(pod: Object) -> None:
    made = samples.forward(pod)
    spec = made["spec"]
    assert "nodeName" not in spec
    assert spec["serviceAccountName"] == "vkgateway-pod"
    assert spec["nodeSelector"].items() >= samples.POOL.node_selector.items()
    assert not any(isinstance(part, dict) and "serviceAccountToken" in part for part in walk(spec["volumes"]))
    affinity = {key: value for key, value in spec.get("affinity", {}).items() if key != "nodeAffinity"}
    for part in walk([affinity, spec.get("topologySpreadConstraints", [])]):
        for name in ("labelSelector", "namespaceSelector"):
            if isinstance(part, dict) and name in part:
                assert part[name]["matchLabels"]["vkgateway.io/tenant"] == "alpha"
    selected = walk(spec.get("affinity", {}).get("nodeAffinity", {}))
    hostname = [part for part in selected if isinstance(part, dict) and part.get("key") == "kubernetes.io/hostname"]
    assert hostname == []
    assert "kubernetes.io/hostname" not in spec["nodeSelector"]


@patient
@given(pods)
def test_reserved_keys_are_never_the_tenants(pod: Object) -> None:
    made = samples.forward(pod)["metadata"]
    assert made["labels"]["vkgateway.io/tenant"] == "alpha"
    assert made["labels"]["vkgateway.io/pool"] == "a100"
    ours = {key for key in made["labels"] if GROUP in key and LABEL_DOMAIN not in key}
    assert ours == {"vkgateway.io/tenant", "vkgateway.io/pool"}


@patient
@given(pods, pods)
def test_forwarded_pod_has_no_difference(pod: Object, later: Object) -> None:
    below = samples.compute_pod(pod, {})
    changes = diff_pods(later, below, tenant=samples.TENANT, pool=samples.POOL)
    change = (changes.patch or {}).get("metadata") or {}
    for kind in ("labels", "annotations"):
        standing = {**below["metadata"][kind], **change.get(kind, {})}
        below["metadata"][kind] = {key: value for key, value in standing.items() if value is not None}
    again = diff_pods(later, below, tenant=samples.TENANT, pool=samples.POOL)
    assert "metadata" not in (again.patch or {})
    assert {key for key in below["metadata"]["labels"] if GROUP not in key} == {
        key for key in later["metadata"]["labels"] if GROUP not in key and not key.startswith(STAYING)
    }


@patient
@given(pods, compute_statuses, tenant_statuses)
def test_mirroring_is_idempotent_and_hides_the_compute_cluster(pod: Object, below: Object, above: Object) -> None:
    compute = {**samples.forward(pod), "status": below}
    compute["metadata"]["uid"] = COMPUTE_UID
    compute["spec"]["nodeName"] = HOST
    before = copy.deepcopy((compute, above))
    patch = mirror_status(compute, above, node_ip="10.213.0.1", node_name="a100.local")
    taken = Disruption(reason="Taken", message="taken")
    ending = final_status(compute, above, disruption=taken, now=NOW, node_ip="10.213.0.1", node_name="a100.local")
    assert (compute, above) == before
    if above.get("phase") in ("Succeeded", "Failed"):
        assert "phase" not in (patch or {})
        assert "phase" not in (ending or {})
    elif ending is not None:
        assert {**above, **ending}["phase"] in ("Succeeded", "Failed")
    for made in filter(None, (patch, ending)):
        shown = [part for part in walk({key: made[key] for key in made.keys() - above.keys()}) if isinstance(part, str)]
        assert not any(secret in text for text in shown for secret in HIDDEN)
        assert "qosClass" not in made
        assert "observedGeneration" not in made
    after = {key: value for key, value in {**above, **(patch or {})}.items() if value is not None}
    assert mirror_status(compute, after, node_ip="10.213.0.1", node_name="a100.local") is None


@patient
@given(pods, tenants)
def test_allowed_tenant_pod_is_an_allowed_compute_pod(pod: Object, tenant: TenantContext) -> None:
    """The compute namespace carries the tenant's level: whatever passes here must pass there."""
    spec = {key: value for key, value in pod["spec"].items() if key not in ("hostNetwork", "resourceClaims")}
    allowed = {**pod, "spec": {**spec, "volumes": [], "runtimeClassName": None}}
    if find_refusals(allowed, tenant=tenant, pool=samples.POOL):
        return
    made = forward_pod(allowed, tenant=tenant, pool=samples.POOL, namespace=BELOW)
    assert find_violations(made, level=tenant.pod_security) == []


@patient
@given(pods, tenants)
def test_platform_choices_are_never_forwarded(pod: Object, tenant: TenantContext) -> None:
    spec = forward_pod(pod, tenant=tenant, pool=samples.POOL, namespace=BELOW)["spec"]
    never = ("nodeName", "schedulerName", "priority", "preemptionPolicy", "overhead", "subdomain")
    assert spec.keys().isdisjoint(never)
    assert spec["priorityClassName"] in ("vkgateway-guaranteed", "vkgateway-low")
    assert spec["automountServiceAccountToken"] is False
    assert spec["dnsPolicy"] != "ClusterFirst"
    assert not any(entry.get("key", "") in ("", "vkgateway.io/pool") for entry in spec["tolerations"])


@patient
@given(pods, changed)
def test_changes_of_a_running_pod_are_forwarded_once(pod: Object, change: Object) -> None:
    start = after(pod, {})
    below = samples.compute_pod(start, {})
    wanted = after(pod, change)
    before = copy.deepcopy((wanted, below))
    changes = diff_pods(wanted, below, tenant=samples.TENANT, pool=samples.POOL)
    assert (wanted, below) == before
    for patch in (changes.patch, *changes.subresources.values()):
        below = apply_strategic_patch(below, patch or {})
    again = diff_pods(wanted, below, tenant=samples.TENANT, pool=samples.POOL)
    assert (again.patch, again.subresources) == (None, {})
    for kind in ("containers", "initContainers"):
        assert [one["image"] for one in below["spec"].get(kind, ())] == [
            one["image"] for one in wanted["spec"].get(kind, ())
        ]
    refused = {refusal.field for refusal in again.unsupported}
    running = {container["name"] for container in below["spec"].get("ephemeralContainers", ())}
    for container in wanted["spec"]["ephemeralContainers"]:
        assert (container["name"] in running) != (f"spec.ephemeralContainers[{container['name']}]" in refused)


@patient
@given(pods, compute_statuses, tenant_statuses, st.integers(0, 9))
def test_tenant_conditions_are_kept(pod: Object, below: Object, above: Object, observed: int) -> None:
    """Conditions unknown in the compute cluster, the tenant's own fields, and everything but the status."""
    compute = {**samples.forward(pod), "status": below}
    patch = mirror_status(compute, above, node_ip="10.213.0.1", observed=observed) or {}
    from_below = {entry["type"] for entry in below.get("conditions", ())} | {"Ready", "ContainersReady", "Initialized"}
    own = [entry for entry in above.get("conditions", ()) if entry["type"] not in from_below]
    now: list[Object] = patch.get("conditions") or above.get("conditions") or []
    assert [entry for entry in now if entry in own] == own
    scheduled = [entry for entry in above.get("conditions", ()) if entry["type"] == "PodScheduled"]
    assert all(entry in now for entry in scheduled)
    assert "qosClass" not in patch
    assert patch.get("observedGeneration", observed) == observed
