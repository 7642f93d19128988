"""Names of the chart's objects, with the default start and with another one (`nameOverride`)."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path

import pytest

from tests.chart.conftest import ALL_APIS, CHART, Helm, Objects, RefusedValuesError
from tests.chart.references import existing, read_settings, references
from tests.chart.test_rendering import CERT_MANAGER, EXTERNAL, FULL
from vkgateway.api.names import SYSTEM_NAMESPACE

NAME = "federation"
LONGEST = "f" * 47
TEMPLATES = r"--set-string=templates.default.template\.yaml=a"
VARIANTS = [(TEMPLATES,), EXTERNAL, CERT_MANAGER, FULL]
GIVEN = {("Secret", "etcd")}
"""Objects that the values name."""

NAMED_BY_OTHERS = {
    ("ServiceAccount", "vkgateway"),
    ("Role", "vkgateway"),
    ("RoleBinding", "vkgateway"),
    ("ServiceAccount", "vkgateway-state-reader"),
    ("Role", "vkgateway-state-reader"),
    ("Role", "vkgateway-pre-pull"),
    ("RoleBinding", "vkgateway-pre-pull"),
}
"""Objects of the release's namespace that the gateway's code, `deploy/rbac` and administrators name."""
OWN = {
    ("ConfigMap", ""),
    ("Deployment", ""),
    ("NetworkPolicy", ""),
    ("NetworkPolicy", "-etcd"),
    ("Pod", "-test"),
    ("PodDisruptionBudget", ""),
    ("Role", "-test"),
    ("RoleBinding", "-test"),
    ("Service", "-etcd"),
    ("Service", "-kubelet"),
    ("Service", "-metrics"),
    ("Service", "-page"),
    ("ServiceAccount", "-test"),
    ("StatefulSet", "-etcd"),
}
"""The others, with default values, by the end of their names: a release must find them again after an upgrade."""


def own_names(objects: Objects) -> set[tuple[str, str]]:
    """Return kind and name of the objects of the release's namespace that the name starts."""
    found = {
        (one["kind"], one["metadata"]["name"])
        for one in objects.all
        if one["metadata"].get("namespace") == SYSTEM_NAMESPACE
    }
    return found - NAMED_BY_OTHERS


def renamed(*values: str) -> tuple[str, ...]:
    """Return the values with another name."""
    return (*ALL_APIS, *values, f"--set=nameOverride={NAME}")


def test_default_names_stay_over_upgrades(helm: Helm) -> None:
    assert own_names(helm.render()) == {(kind, f"vkgateway{end}") for kind, end in OWN}


@pytest.mark.parametrize("values", VARIANTS)
def test_the_name_starts_every_own_object(helm: Helm, values: tuple[str, ...]) -> None:
    objects = helm.render(*renamed(*values))
    names = own_names(objects)
    assert len(names) >= 10
    assert not [name for _, name in names if name != NAME and not name.startswith(f"{NAME}-")]
    others = [one for one in objects.all if (one["kind"], one["metadata"]["name"]) not in names]
    assert len(others) > 20
    assert not [one["metadata"] for one in others if NAME in str(one["metadata"])]
    assert not [one["metadata"] for one in objects.all if NAME in str(one["metadata"].get("labels"))]


@pytest.mark.parametrize("values", VARIANTS)
def test_nothing_but_the_name_differs(helm: Helm, values: tuple[str, ...]) -> None:
    """With the next tests: labels, cluster-scoped objects and objects that others name are equal."""
    default = helm.template(*ALL_APIS, *values)
    changed = helm.template(*renamed(*values))
    assert NAME not in default
    assert without_checksums(changed.replace(NAME, "vkgateway")) == without_checksums(default)


def without_checksums(text: str) -> str:
    """Return the text without the checksum of the settings, which contain names."""
    return re.sub(r"checksum/config: \w+", "", text)


@pytest.mark.parametrize("name", ["vkgateway", NAME])
@pytest.mark.parametrize("values", VARIANTS)
def test_every_name_belongs_to_an_object(helm: Helm, tmp_path: Path, values: tuple[str, ...], name: str) -> None:
    objects = helm.render(*ALL_APIS, *values, f"--set=nameOverride={name}")
    config = read_settings(objects, tmp_path)
    named = set(references(objects))
    assert named >= {("Service", f"{name}-kubelet"), ("ServiceAccount", "vkgateway"), ("ConfigMap", name)}
    assert named - existing(objects, config) - GIVEN == set()


def test_settings_follow_the_name(helm: Helm, tmp_path: Path) -> None:
    config = read_settings(helm.render(*renamed()), tmp_path)
    assert config.kubelet.advertise_address == f"{NAME}-kubelet.{SYSTEM_NAMESPACE}.svc"
    assert config.datastore.endpoints == (f"https://{NAME}-etcd-0.{NAME}-etcd.{SYSTEM_NAMESPACE}.svc:2379",)
    assert config.datastore.managed.secret_prefix == f"{NAME}-etcd"


def test_alerts_about_etcd_ask_for_its_service(helm: Helm) -> None:
    rules = helm.render(*renamed("--set=metrics.prometheusRule.enabled=true")).get("PrometheusRule", NAME)
    expressions = [rule["expr"] for group in rules["spec"]["groups"] for rule in group["rules"]]
    asked = {service for text in expressions for service in re.findall(r'service="([^"]+)"', text)}
    assert asked == {f"{NAME}-etcd"}


def test_the_longest_name_fits(helm: Helm) -> None:
    """A label of the pods of a StatefulSet is its name and a hash of 10 characters; a label has 63 characters."""
    objects = helm.render(*ALL_APIS, *CERT_MANAGER, f"--set=nameOverride={LONGEST}")
    assert all(len(f"{one['metadata']['name']}-0123456789") <= 63 for one in objects.kinds("StatefulSet"))
    assert all(len(one["metadata"]["name"]) <= 63 for one in objects.kinds("Service", "Pod"))
    # The gateway's certificates have the names of their Secrets; RFC 5280 allows 64 characters.
    assert all(len(one["spec"]["secretName"]) <= 64 for one in objects.kinds("Certificate"))


@pytest.mark.parametrize(
    ("name", "words"),
    [
        (f"{LONGEST}f", "/nameOverride"),
        ("Federation", "/nameOverride"),
        ("1st", "/nameOverride"),
        ("a-", "/nameOverride"),
        ("a.b", "/nameOverride"),
        ("tenant-a", "starts with neither tenant nor usage"),
        ("usage", "starts with neither tenant nor usage"),
    ],
)
def test_other_names_are_refused(helm: Helm, name: str, words: str) -> None:
    with pytest.raises(RefusedValuesError) as refused:
        helm.template(f"--set=nameOverride={name}")
    assert words in str(refused.value)


def test_no_template_writes_the_start_of_a_name(helm: Helm) -> None:
    """Objects that other programs name are those of cluster scope, and the ServiceAccount."""
    cluster_scoped = {"vkgateway-writes", "vkgateway-test", "vkgateway-metrics-reader"}
    written = {
        name
        for file in (CHART / "templates").rglob("*.yaml")
        for name in re.findall(r"\b[nN]ame: (vkgateway[\w-]*)", file.read_text())
    }
    assert written == cluster_scoped | {"vkgateway"}


LOOKUP = re.compile(r'\(lookup "[\w/]+" "(\w+)" \.Release\.Namespace ""\)\.items')
LABELS = {"app.kubernetes.io/name": "vkgateway"}


@pytest.fixture
def chart_of_a_cluster(tmp_path: Path) -> Path:
    """Return the chart with the value `global` in place of objects of the cluster, which `template` cannot list."""
    chart = tmp_path / "vkgateway"
    shutil.copytree(CHART, chart)
    file = chart / "templates/_name_validation.tpl"
    text, number = LOOKUP.subn(r"$.Values.global.\1", file.read_text())
    assert number == 3
    file.write_text(text)
    return chart


def installed(kind: str, name: str, component: str) -> str:
    """Return the values of a cluster with an object of the chart and one of another program."""
    other = {"metadata": {"name": f"{name}-other", "labels": {"app.kubernetes.io/component": component}}}
    own = {"metadata": {"name": name, "labels": LABELS | {"app.kubernetes.io/component": component}}}
    return f"--set-json=global.{kind}={json.dumps([other, own, {'metadata': {'name': 'bare'}}])}"


DEPLOYMENT = installed("Deployment", NAME, "gateway")
STATEFUL_SET = installed("StatefulSet", f"{NAME}-etcd", "etcd")
VOLUME = installed("PersistentVolumeClaim", f"data-{NAME}-etcd-2", "etcd")


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ((DEPLOYMENT, STATEFUL_SET, VOLUME), f"tenants' objects are in StatefulSet {NAME}-etcd"),
        ((VOLUME,), f"tenants' objects are in the volume data-{NAME}-etcd-2"),
        ((DEPLOYMENT, *EXTERNAL), f"API servers of tenants call its Service {NAME}-kubelet"),
    ],
)
def test_an_installed_name_cannot_change(
    helm: Helm, chart_of_a_cluster: Path, values: tuple[str, ...], words: str
) -> None:
    assert helm.template(*values, f"--set=nameOverride={NAME}", chart=chart_of_a_cluster)
    for other in ("", "other"):
        with pytest.raises(RefusedValuesError, match="nameOverride cannot change") as refused:
            helm.template(*values, f"--set=nameOverride={other}", chart=chart_of_a_cluster)
        assert words in str(refused.value)
        assert f'Set nameOverride to "{NAME}".' in str(refused.value)


def test_volumes_of_a_former_etcd_do_not_matter_to_an_external_one(helm: Helm, chart_of_a_cluster: Path) -> None:
    assert helm.template(VOLUME, *EXTERNAL, chart=chart_of_a_cluster)
