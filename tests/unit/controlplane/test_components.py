"""Command lines and environment of the components of a control plane."""

from __future__ import annotations

import dataclasses
import datetime
from collections.abc import Sequence
from pathlib import Path

import pytest
import yaml

from tests.unit.controlplane.planes import (
    ALPHA,
    AUTHORITIES,
    ETCD,
    NOW,
    component,
    tenant_plane,
    versioned_plane,
    write,
)
from vkgateway.api.types import PodSecurity
from vkgateway.planes.components import PROGRAMS
from vkgateway.planes.drivers.process.plane_directory import write_plane_files
from vkgateway.planes.pki import Authority, common_name
from vkgateway.planes.plane import COMPONENTS, ComponentName, Tuning, compute_plane_spec
from vkgateway.planes.plane_files import Authorities
from vkgateway.planes.supervisor.spec import ProcessSpec


def test_only_the_compute_cluster_runs_the_taint_eviction_controller(tmp_path: Path) -> None:
    """An unreachable compute cluster makes virtual nodes NotReady and must not cause deletions."""
    planes = {
        "tenant": tenant_plane(),
        "compute": compute_plane_spec(address="10.0.0.1", port=6443, etcd_endpoints=("https://127.0.0.1:2379",)),
    }
    off = {}
    for name, plane in planes.items():
        files = write(tmp_path / name, plane)
        argv = component("controller-manager", plane=plane, files=files).argv
        (controllers,) = [flag for flag in argv if flag.startswith("--controllers=")]
        off[name] = "-taint-eviction-controller" in controllers.split(",")
    assert off == {"tenant": True, "compute": False}


def test_components_stop_quickly_and_the_api_server_does_not_wait_for_watches(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane())
    specs = {name: component(name, plane=tenant_plane(), files=files) for name in COMPONENTS}
    assert all(spec.stop_timeout <= 3 for spec in specs.values())
    assert "--shutdown-watch-termination-grace-period=1s" in specs["apiserver"].argv


def test_connections_by_type_have_a_proxy_each_and_a_change_restarts_the_api_server(tmp_path: Path) -> None:
    specs = []
    for number, webhooks in enumerate(("", "run/a.webhooks")):
        plane = dataclasses.replace(tenant_plane(), egress_socket="run/a.egress", webhook_socket=webhooks)
        files = write(tmp_path / str(number), plane)
        specs.append(component("apiserver", plane=plane, files=files))
    found = {
        selection["name"]: selection["connection"]["transport"]["uds"]["udsName"]
        for selection in yaml.safe_load(files.egress_path.read_text())["egressSelections"]
    }
    assert found == {"cluster": "run/a.egress", "controlplane": "run/a.webhooks"}
    assert specs[0].env["VKGATEWAY_EGRESS"] != specs[1].env["VKGATEWAY_EGRESS"]
    direct = component("apiserver", plane=tenant_plane(), files=write(tmp_path / "direct", tenant_plane()))
    assert "VKGATEWAY_EGRESS" not in direct.env


def test_template_overrides_the_default_timer_slack(tmp_path: Path) -> None:
    usual = {name: component(name, plane=tenant_plane(), files=write(tmp_path, tenant_plane())) for name in COMPONENTS}
    plane = dataclasses.replace(
        tenant_plane(), tuning={"apiserver": Tuning(timer_slack=0.005), "controller-manager": Tuning(timer_slack=0)}
    )
    tuned = {name: component(name, plane=plane, files=write(tmp_path, plane)) for name in COMPONENTS}
    assert [usual[name].timer_slack for name in COMPONENTS] == [0, 0.02, 0]
    assert all(usual[name].batch for name in COMPONENTS)
    assert [tuned[name].timer_slack for name in COMPONENTS] == [0.005, 0, 0]


@pytest.mark.parametrize(
    ("version", "gates", "beta", "webhook"),
    [
        ("1.30.14", False, False, True),
        ("1.33.13", False, False, True),
        ("1.34.4", True, True, False),
        ("1.35.4", True, True, False),
        ("1.36.3", False, False, False),
    ],
)
def test_api_server_gates_pods_by_policy_or_by_the_webhook(
    tmp_path: Path, version: str, gates: bool, beta: bool, webhook: bool
) -> None:
    plane = versioned_plane(version)
    argv = component("apiserver", plane=plane, files=write(tmp_path, plane)).argv
    assert ("MutatingAdmissionPolicy=true" in next(flag for flag in argv if "feature-gates" in flag)) == gates
    assert ("--runtime-config=admissionregistration.k8s.io/v1beta1=true" in argv) == beta
    assert (f"--admission-control-config-file={tmp_path / 'admission.yaml'}" in argv) == webhook
    assert (tmp_path / "admission.yaml").exists() == webhook


@pytest.mark.parametrize("version", ["1.30.14", "1.36.3"])
def test_pod_security_level_applies_to_namespaces_without_labels(tmp_path: Path, version: str) -> None:
    plane = dataclasses.replace(versioned_plane(version), pod_security="restricted")
    files = write(tmp_path, plane)
    plugins = {one["name"]: one["configuration"] for one in yaml.safe_load(files.admission_path.read_text())["plugins"]}
    defaults = plugins["PodSecurity"]["defaults"]
    assert (defaults["enforce"], defaults["enforce-version"], defaults["warn"]) == (
        "restricted",
        "latest",
        "restricted",
    )
    assert ("MutatingAdmissionWebhook" in plugins) == (version == "1.30.14")
    argv = component("apiserver", plane=plane, files=files).argv
    assert f"--admission-control-config-file={files.admission_path}" in argv


def test_changed_pod_security_level_restarts_only_the_api_server(tmp_path: Path) -> None:
    def specs(level: PodSecurity) -> dict[str, ProcessSpec]:
        plane = dataclasses.replace(tenant_plane(), pod_security=level)
        files = write(tmp_path, plane)
        return {name: component(name, plane=plane, files=files) for name in PROGRAMS}

    before, again, after = specs("baseline"), specs("baseline"), specs("restricted")
    assert before == again
    assert {name for name in PROGRAMS if before[name] != after[name]} == {"apiserver"}


def test_template_adds_and_removes_flags(tmp_path: Path) -> None:
    plane = tenant_plane(flags={"v": "4", "profiling": None, "event-ttl": "10m"})
    spec = component("apiserver", plane=plane, files=write(tmp_path, plane))
    assert {"--v=4", "--event-ttl=10m"} <= set(spec.argv)
    assert not [argument for argument in spec.argv if argument.startswith("--profiling")]


def test_feature_gates_of_the_template_are_merged_with_those_of_the_release(tmp_path: Path) -> None:
    tuning: dict[str, str | None] = {
        "feature-gates": "GenericWorkload=true, WatchList=true",
        "runtime-config": "scheduling.k8s.io/v1alpha1=true",
    }
    plane = dataclasses.replace(versioned_plane("1.35.4"), tuning={"apiserver": Tuning(flags=tuning)})
    argv = component("apiserver", plane=plane, files=write(tmp_path, plane)).argv
    gates = list_flag("feature-gates", argv)
    assert gates["WatchList"] == "true"
    assert gates["SizeBasedListCostEstimate"] == "false"
    assert gates["MutatingAdmissionPolicy"] == "true"
    assert gates["GenericWorkload"] == "true"
    versions = "admissionregistration.k8s.io/v1beta1=true,scheduling.k8s.io/v1alpha1=true"
    assert f"--runtime-config={versions}" in argv


@pytest.mark.parametrize(
    ("version", "off"),
    [
        ("1.30.14", {"WatchList", "APIServerIdentity"}),
        ("1.33.13", {"WatchList", "APIServerIdentity"}),
        (
            "1.35.4",
            {
                "WatchList",
                "APIServerIdentity",
                "SizeBasedListCostEstimate",
                "ListFromCacheSnapshot",
                "DetectCacheInconsistency",
            },
        ),
        (
            "1.36.3",
            {
                "WatchList",
                "APIServerIdentity",
                "SizeBasedListCostEstimate",
                "ListFromCacheSnapshot",
                "DetectCacheInconsistency",
                "UnknownVersionInteroperabilityProxy",
            },
        ),
    ],
)
def test_feature_gates_without_a_purpose_are_disabled(tmp_path: Path, version: str, off: set[str]) -> None:
    plane = versioned_plane(version)
    argv = component("apiserver", plane=plane, files=write(tmp_path, plane)).argv
    assert {gate for gate, value in list_flag("feature-gates", argv).items() if value == "false"} == off


def list_flag(flag: str, argv: Sequence[str]) -> dict[str, str]:
    """Return the entries of a flag that holds a list of NAME=VALUE."""
    (text,) = (argument.partition("=")[2] for argument in argv if argument.startswith(f"--{flag}="))
    return dict(entry.split("=", 1) for entry in text.split(","))


def test_template_sets_feature_gates_or_removes_all_of_them(tmp_path: Path) -> None:
    wanted = {"feature-gates": None}, {"feature-gates": "A=true"}
    tuning: dict[ComponentName, Tuning] = {
        "apiserver": Tuning(flags=wanted[0]),
        "controller-manager": Tuning(flags=wanted[1]),
    }
    plane = dataclasses.replace(tenant_plane(), tuning=tuning)
    files = write(tmp_path, plane)
    found = [component(name, plane=plane, files=files).argv for name in tuning]
    assert [[flag for flag in argv if "feature-gates" in flag] for argv in found] == [[], ["--feature-gates=A=true"]]


def test_flags_are_unique_and_hold_no_secret(tmp_path: Path) -> None:
    files = write(tmp_path, tenant_plane())
    for name in COMPONENTS:
        spec = component(name, plane=tenant_plane(), files=files)
        flags = [argument.partition("=")[0] for argument in spec.argv[1:]]
        assert len(flags) == len(set(flags))
        assert "PRIVATE" not in " ".join(spec.argv)


def test_new_authority_restarts_components_but_a_new_certificate_does_not(tmp_path: Path) -> None:
    plane = tenant_plane()
    first = component("apiserver", plane=plane, files=write(tmp_path, plane))
    renewed = write(tmp_path, plane, now=NOW + datetime.timedelta(days=300))
    assert component("apiserver", plane=plane, files=renewed) == first
    others = Authorities(etcd=AUTHORITIES.etcd, kubelet=Authority.create("kubelet"))
    replaced = write_plane_files(tmp_path, plane=plane, credentials=ALPHA, authorities=others, now=NOW)
    assert component("apiserver", plane=plane, files=replaced) != first


def test_api_server_listens_at_its_bind_address_and_advertises_the_other(tmp_path: Path) -> None:
    plane = dataclasses.replace(tenant_plane(), bind_address="0.0.0.0", bind_port=6443)
    argv = component("apiserver", plane=plane, files=write(tmp_path, plane)).argv
    assert {"--bind-address=0.0.0.0", "--secure-port=6443", "--advertise-address=10.0.0.1"} <= set(argv)


def test_compute_cluster_has_its_own_etcd_prefix_and_user(tmp_path: Path) -> None:
    plane = compute_plane_spec(address="10.0.0.1", port=6443, etcd_endpoints=ETCD)
    spec = component("apiserver", group="compute", plane=plane, files=write(tmp_path, plane))
    assert spec.name == "compute/apiserver"
    assert "--etcd-prefix=/compute" in spec.argv
    assert common_name((tmp_path / "etcd.crt").read_bytes()) == "compute"
