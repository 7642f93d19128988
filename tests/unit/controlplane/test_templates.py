"""Templates are parsed strictly: misspelt and undefined names are errors."""

import base64
import json
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from vkgateway.api.errors import InputError
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.kinds.pods.policy.admission_review import review_job
from vkgateway.kinds.services.translation import METRICS_SERVICE
from vkgateway.planes.kept_objects import is_initial, kept_objects
from vkgateway.planes.templates import Templates, TenantFacts

SHIPPED = Path(__file__).parents[3] / "tenant_templates" / "default"
FACTS = TenantFacts(
    name="alpha",
    template="default",
    kubernetes_version="1.36.3",
    address="10.0.0.1",
    port=20001,
    cluster_domain="cluster.local",
)


def write(folder: Path, *, template: str = "description: some\n", **objects: str) -> Templates:
    (folder / "mine" / "objects").mkdir(parents=True)
    (folder / "mine" / "template.yaml").write_text(template)
    for name, text in objects.items():
        (folder / "mine" / "objects" / f"{name}.yaml.j2").write_text(text)
    return Templates(folder)


def test_example_of_the_documentation_is_complete(tmp_path: Path) -> None:
    page = (Path(__file__).parents[3] / "docs" / "how-to" / "write-a-template.md").read_text()
    _, _, rest = page.partition("```yaml\ndescription:")
    shutil.copytree(SHIPPED, tmp_path / "mine")
    (tmp_path / "mine" / "template.yaml").write_text("description:" + rest.partition("```")[0])
    template = Templates(tmp_path).load_template("mine")
    shipped = Templates().load_template("default")
    assert {**template.values, "team": ""} == {**shipped.values, "team": ""}
    assert template.render_objects(FACTS) == shipped.render_objects(FACTS)


def test_initial_objects_include_priority_classes_and_api_server_endpoints() -> None:
    objects = Templates().load_template("default").render_objects(FACTS)
    named = {(found["kind"], found["metadata"]["name"]): found for found in objects}
    assert not any(found.get("globalDefault") for found in objects), "a chart may bring a global default"
    assert named["PriorityClass", "vkgateway-low"]["value"] < named["PriorityClass", "vkgateway-guaranteed"]["value"]
    endpoints = named["EndpointSlice", "kubernetes"]
    assert endpoints["endpoints"][0]["addresses"] == ["10.0.0.1"]
    assert endpoints["ports"][0]["port"] == 20001
    assert named["Endpoints", "kubernetes"]["subsets"][0]["addresses"] == [{"ip": "10.0.0.1"}]


def test_initial_objects_include_the_ca_of_the_kubelet_endpoint() -> None:
    facts = replace(FACTS, webhooks_ca=base64.b64encode(b"-----BEGIN\nQ0E=\n").decode())
    objects = Templates().load_template("default").render_objects(facts)
    (config_map,) = [found for found in objects if found["metadata"]["name"] == "vkgateway-kubelet-ca"]
    assert config_map["data"] == {"ca.crt": "-----BEGIN\nQ0E=\n"}
    assert kept_objects([config_map]) == [config_map]


def metrics(**facts: Any) -> dict[str, dict[str, Any]]:
    """Return the default template's objects for metrics.k8s.io, by kind."""
    template = Templates().load_template("default")
    values = {**template.values, "metrics": facts.pop("metrics", True)}
    made = replace(template, values=values).render_objects(replace(FACTS, **facts))
    names = ("vkgateway-metrics", "v1beta1.metrics.k8s.io", "vkgateway:metrics-reader")
    return {found["kind"]: found for found in made if found["metadata"]["name"] in names}


def test_metrics_api_leads_to_the_gateway() -> None:
    found = metrics(endpoint_host="10.0.0.9", endpoint_port=10350)
    assert set(found) == {"Service", "EndpointSlice", "ClusterRole", "APIService"}
    assert found["APIService"]["spec"]["service"] == {
        "name": "vkgateway-metrics",
        "namespace": "kube-system",
        "port": 443,
    }
    assert found["EndpointSlice"]["endpoints"][0]["addresses"] == ["10.0.0.9"]
    assert found["EndpointSlice"]["ports"][0]["port"] == 10350
    assert all(is_initial(found[kind]) for kind in ("Service", "APIService")), "metrics-server may take them over"
    assert ("kube-system", found["Service"]["metadata"]["name"]) == METRICS_SERVICE


def test_older_server_finds_the_metrics_api_by_endpoints() -> None:
    found = metrics(kubernetes_version="1.32.13", endpoint_host="10.0.0.9", endpoint_port=10350)
    assert found["Endpoints"]["subsets"][0]["addresses"] == [{"ip": "10.0.0.9"}]


@pytest.mark.parametrize(
    "facts", [{"metrics": False, "endpoint_port": 10350}, {"endpoint_port": 0}], ids=["off", "no fixed port"]
)
def test_no_metrics_api_if_disabled_or_without_a_fixed_port(facts: dict[str, Any]) -> None:
    assert metrics(**facts) == {}


def gate(version: str, *, webhooks_url: str = "", webhooks_ca: str = "") -> list[dict[str, Any]]:
    """Return the default template's objects that gate pods in a tenant of that version."""
    template = Templates().load_template("default")
    gated = replace(template, values={**template.values, "admissionGate": True})
    facts = replace(FACTS, kubernetes_version=version, webhooks_url=webhooks_url, webhooks_ca=webhooks_ca)
    objects = gated.render_objects(facts)
    return [found for found in objects if found["metadata"]["name"] == "vkgateway-admission"]


@pytest.mark.parametrize(("version", "api"), [("1.34.0", "v1beta1"), ("1.35.4", "v1beta1"), ("1.36.3", "v1")])
def test_pods_are_gated_by_an_admission_policy(version: str, api: str) -> None:
    policy, binding = gate(version)

    assert (policy["kind"], binding["kind"]) == ("MutatingAdmissionPolicy", "MutatingAdmissionPolicyBinding")
    assert {policy["apiVersion"], binding["apiVersion"]} == {f"admissionregistration.k8s.io/{api}"}
    assert binding["spec"] == {"policyName": policy["metadata"]["name"]}
    assert policy["spec"]["failurePolicy"] == "Fail"
    assert ADMISSION_GATE in policy["spec"]["mutations"][0]["jsonPatch"]["expression"]
    assert kept_objects([policy, binding]) == [policy, binding]


@pytest.mark.parametrize("version", ["1.30.0", "1.33.13"])
def test_older_api_server_calls_the_webhook_under_the_same_conditions(version: str) -> None:
    (configuration,) = gate(version, webhooks_url="https://10.0.0.1:10352", webhooks_ca="Q0E=")
    (webhook,) = configuration["webhooks"]

    assert configuration["kind"] == "MutatingWebhookConfiguration"
    assert webhook["clientConfig"] == {"url": "https://10.0.0.1:10352/admission/gate", "caBundle": "Q0E="}
    assert webhook["failurePolicy"] == "Ignore"
    assert webhook["matchConditions"] == gate("1.36.3")[0]["spec"]["matchConditions"]
    assert kept_objects([configuration])


def test_no_gate_without_policy_support_and_webhook() -> None:
    assert gate("1.33.13") == []


def test_no_gate_if_the_template_disables_it() -> None:
    template = Templates().load_template("default")
    objects = replace(template, values={**template.values, "admissionGate": False}).render_objects(FACTS)

    assert "vkgateway-admission" not in {found["metadata"]["name"] for found in objects}


def job_evictions(
    version: str = "1.36.3", *, kind: str = "job", webhooks_url: str = "", **values: bool
) -> dict[str, dict[str, Any]]:
    """Return the default template's objects about evictions of Jobs or JobSets in a tenant of that version, by kind."""
    template = Templates().load_template("default")
    facts = replace(FACTS, kubernetes_version=version, webhooks_url=webhooks_url, webhooks_ca="Q0E=")
    objects = replace(template, values={**template.values, **values}).render_objects(facts)
    found = [one for one in objects if one["metadata"]["name"] == f"vkgateway-{kind}-evictions"]
    assert kept_objects(found) == found
    return {one["kind"]: one for one in found}


@pytest.mark.parametrize(("version", "api"), [("1.34.0", "v1beta1"), ("1.36.3", "v1")])
def test_jobs_ignore_evictions_by_an_admission_policy(version: str, api: str) -> None:
    found = job_evictions(version)

    policy, binding = found["MutatingAdmissionPolicy"], found["MutatingAdmissionPolicyBinding"]
    assert {policy["apiVersion"], binding["apiVersion"]} == {f"admissionregistration.k8s.io/{api}"}
    assert binding["spec"] == {"policyName": policy["metadata"]["name"]}
    assert policy["spec"]["failurePolicy"] == "Ignore"
    (rule,) = policy["spec"]["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"], rule["operations"]) == (["batch"], ["jobs"], ["CREATE"])
    expression = policy["spec"]["mutations"][0]["jsonPatch"]["expression"]
    patch = review_job(JOB_REVIEW)["response"]["patch"]
    for operation in json.loads(base64.b64decode(patch)):
        assert f"path: '{operation['path']}'" in expression
    for value in ("Failed", "Ignore", "DisruptionTarget", "True"):
        assert f"'{value}'" in expression


JOB_REVIEW = {
    "apiVersion": "admission.k8s.io/v1",
    "request": {
        "uid": "1",
        "kind": {"kind": "Job"},
        "operation": "CREATE",
        "object": {"spec": {"template": {"spec": {"restartPolicy": "Never"}}}},
    },
}


def test_older_api_server_calls_the_webhook_for_jobs_under_the_same_conditions() -> None:
    found = job_evictions("1.33.13", webhooks_url="https://10.0.0.1:10352")

    (webhook,) = found["MutatingWebhookConfiguration"]["webhooks"]
    assert webhook["clientConfig"] == {"url": "https://10.0.0.1:10352/admission/job", "caBundle": "Q0E="}
    assert webhook["failurePolicy"] == "Ignore"
    policy = job_evictions()["MutatingAdmissionPolicy"]["spec"]
    assert webhook["matchConditions"] == policy["matchConditions"]
    assert webhook["rules"] == policy["matchConstraints"]["resourceRules"]


@pytest.mark.parametrize("version", ["1.30.0", "1.36.3"])
def test_jobs_that_cannot_ignore_evictions_get_a_warning(version: str) -> None:
    found = job_evictions(version)

    policy, binding = found["ValidatingAdmissionPolicy"]["spec"], found["ValidatingAdmissionPolicyBinding"]["spec"]
    assert binding == {"policyName": "vkgateway-job-evictions", "validationActions": ["Warn"]}
    restarts, waits = (condition["expression"] for condition in policy["matchConditions"])
    assert restarts == "object.spec.template.spec.restartPolicy == 'OnFailure'"
    gated = gate("1.36.3")[0]["spec"]["matchConditions"][-1]["expression"]
    assert waits == gated.replace("object.", "object.spec.template."), "pods that the arbiter can evict"
    assert "backoffLimit" in policy["validations"][0]["messageExpression"]


@pytest.mark.parametrize("version", ["1.30.0", "1.36.3"])
def test_user_of_a_jobset_gets_the_warning_about_its_jobs(version: str) -> None:
    """JobSet's webhook sets OnFailure by default, and its controller creates the Jobs."""
    found = job_evictions(version, kind="jobset")

    assert set(found) == {"ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"}
    assert found["ValidatingAdmissionPolicyBinding"]["spec"]["validationActions"] == ["Warn"]
    policy = found["ValidatingAdmissionPolicy"]["spec"]
    (rule,) = policy["matchConstraints"]["resourceRules"]
    assert (rule["apiGroups"], rule["resources"]) == (["jobset.x-k8s.io"], ["jobsets"])
    assert "restartPolicy.orValue('OnFailure') == 'OnFailure'" in policy["matchConditions"][0]["expression"]


def test_jobs_count_evictions_if_the_template_disables_it() -> None:
    for version in ("1.36.3", "1.33.13"):
        assert job_evictions(version, kind="jobset", ignoreEvictions=False) == {}
        assert job_evictions(version, webhooks_url="https://10.0.0.1:10352", ignoreEvictions=False) == {}
        gated = job_evictions(version, webhooks_url="https://10.0.0.1:10352", admissionGate=False)
        assert gated, "independent of the gate"


def test_files_render_in_order_with_any_number_of_objects(tmp_path: Path) -> None:
    text = "{apiVersion: v1, kind: A, metadata: {name: %s}}\n"
    templates = write(
        tmp_path,
        b=text % "{{ tenant.name }}",
        a=text % "one" + "---\n" + text % "{{ values.two }}",
        c="# nothing\n",
        template="description: some\nvalues: {two: zwei}\n",
    )
    names = [found["metadata"]["name"] for found in templates.load_template("mine").render_objects(FACTS)]
    assert names == ["one", "zwei", "alpha"]


def test_flags_and_environment_become_strings(tmp_path: Path) -> None:
    templates = write(
        tmp_path,
        template="description: x\ncomponents: {apiserver: {flags: {v: 4, a: true, x: null}, env: {GOGC: 80}}}\n",
    )
    tuning = templates.load_template("mine").tuning["apiserver"]
    assert tuning.flags == {"v": "4", "a": "true", "x": None}
    assert tuning.env == {"GOGC": "80"}
    assert tuning.timer_slack is None


def test_timer_slack_is_in_milliseconds_up_to_a_second(tmp_path: Path) -> None:
    text = "description: x\ncomponents: {apiserver: {timerSlackMilliseconds: %s}}\n"
    assert write(tmp_path, template=text % 5).load_template("mine").tuning["apiserver"].timer_slack == 0.005
    (tmp_path / "mine" / "template.yaml").write_text(text % 1001)
    with pytest.raises(InputError, match=r"<= 1000 .*timerSlackMilliseconds"):
        Templates(tmp_path).load_template("mine")


def test_unknown_template_lists_the_available_ones(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="template 'other' does not exist") as caught:
        write(tmp_path).load_template("other")
    assert "mine" in caught.value.hint


@pytest.mark.parametrize("name", ["..", "../default", "", "mine/objects"])
def test_template_name_is_not_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InputError, match="does not exist"):
        write(tmp_path).load_template(name)


@pytest.mark.parametrize("template", ["", "description: x\nflag: 1\n", "description: x\ncomponents: {etcd: {}}\n", "{"])
def test_invalid_description_is_refused_with_its_path(tmp_path: Path, template: str) -> None:
    with pytest.raises(InputError, match=r"mine/template\.yaml"):
        write(tmp_path, template=template).load_template("mine")


@pytest.mark.parametrize("text", ["a: {{ tenant.unknown }}", "{% if %}", "a: [", "just text", "{kind: A}"])
def test_invalid_object_is_refused_with_its_path(tmp_path: Path, text: str) -> None:
    templates = write(tmp_path, bad=text)
    with pytest.raises(InputError, match=r"objects/bad\.yaml\.j2"):
        templates.load_template("mine").render_objects(FACTS)


def test_template_describes_pods_and_their_resources(tmp_path: Path) -> None:
    text = """
description: large
components:
  apiserver: {resources: {requests: {cpu: 500m, memory: 1Gi}, limits: {memory: 2Gi}}}
pod:
  replicas: 2
  nodeSelector: {disk: fast}
  tolerations: [{key: control-planes, operator: Exists}]
  priorityClassName: tenants
"""
    found = write(tmp_path, template=text).load_template("mine")
    assert found.tuning["apiserver"].resources.limits == {"memory": "2Gi"}
    assert (found.pod.replicas, found.pod.node_selector) == (2, {"disk": "fast"})
    assert found.pod.tolerations[0].key == "control-planes"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("pod: {replicas: 4}", r"`int` <= 3 - at `\$\.pod\.replicas`"),
        ("pod: {replica: 2}", "unknown field `replica`"),
        ("components: {apiserver: {resources: {limits: {memory: 2 GB}}}}", r"limits\.memory: '2 GB' is not an amount"),
        ("components: {scheduler: {resources: {requests: {cpu: -1}}}}", r"scheduler\.resources\.requests\.cpu: -1"),
        (
            "components: {apiserver: {resources: {requests: {cpu: 2}, limits: {cpu: 1500m}}}}",
            "the request of 2 cpu is above the limit of 1500m",
        ),
    ],
)
def test_invalid_pods_and_resources_are_named(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(InputError, match=message):
        write(tmp_path, template=f"description: some\n{text}\n").load_template("mine")
