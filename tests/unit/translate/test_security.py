"""Pod Security Standards: verdicts and messages of the PodSecurity admission plugin of Kubernetes 1.36."""

from typing import Any

import pytest

from tests.unit.translate.samples import container, pod
from vkgateway.api.types import PodSecurity
from vkgateway.kinds.pods.policy.security import find_violations

GOOD = {
    "allowPrivilegeEscalation": False,
    "capabilities": {"drop": ["ALL"]},
    "runAsNonRoot": True,
    "seccompProfile": {"type": "RuntimeDefault"},
}


def violations(level: PodSecurity, wanted: dict[str, Any]) -> str:
    found = find_violations(wanted, level=level)
    prefix = f'violates PodSecurity "{level}:latest": '
    assert all(one.message.startswith(prefix) for one in found)
    return ", ".join(one.message.removeprefix(prefix) for one in found)


def secured(context: dict[str, Any], *names: str) -> dict[str, Any]:
    return pod(containers=[container(name, securityContext=context) for name in names or ("app",)])


AA = "container.apparmor.security.beta.kubernetes.io/app"


@pytest.mark.parametrize(
    ("wanted", "words"),
    [
        (pod(hostNetwork=True, hostIPC=True), "host namespaces (hostNetwork=true, hostIPC=true)"),
        (
            pod(volumes=[{"name": "a", "hostPath": {"path": "/"}}, {"name": "b", "hostPath": {"path": "/"}}]),
            'hostPath volumes (volumes "a", "b")',
        ),
        (
            pod(containers=[container(ports=[{"hostPort": 80}, {"hostPort": 443}, {"containerPort": 1}])]),
            'hostPort (container "app" uses hostPorts 443, 80)',
        ),
        (
            secured({"privileged": True}, "a", "b"),
            'privileged (containers "a", "b" must not set securityContext.privileged=true)',
        ),
        (
            secured({"capabilities": {"add": ["NET_ADMIN", "CHOWN"]}}),
            'non-default capabilities (container "app" must not include "NET_ADMIN" in '
            "securityContext.capabilities.add)",
        ),
        (
            secured({"procMount": "Unmasked"}),
            'procMount (container "app" must not set securityContext.procMount to "Unmasked")',
        ),
        (
            secured({"seccompProfile": {"type": "Unconfined"}}),
            'seccompProfile (container "app" must not set securityContext.seccompProfile.type to "Unconfined")',
        ),
        (
            pod(securityContext={"seLinuxOptions": {"type": "x_t", "user": "u"}}),
            'seLinuxOptions (pod set forbidden securityContext.seLinuxOptions: type "x_t"; user may not be set)',
        ),
        (
            pod(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}),
            "forbidden sysctls (kernel.msgmax)",
        ),
        (
            pod(containers=[container(livenessProbe={"httpGet": {"host": "10.0.0.1", "port": 1}})]),
            'probe or lifecycle host (container "app" uses probe or lifecycle host "10.0.0.1")',
        ),
        (
            pod(metadata={"annotations": {AA: "unconfined"}}),
            f'forbidden AppArmor profile (annotation must not set AppArmor profile type to "{AA}="unconfined"")',
        ),
        (
            pod(securityContext={"appArmorProfile": {"type": "Unconfined"}}),
            'forbidden AppArmor profile (pod must not set AppArmor profile type to "Unconfined")',
        ),
        (
            pod(securityContext={"windowsOptions": {"hostProcess": True}}),
            "hostProcess (pod must not set securityContext.windowsOptions.hostProcess=true)",
        ),
    ],
)
def test_baseline(wanted: dict[str, Any], words: str) -> None:
    assert violations("baseline", wanted) == words
    assert violations("privileged", wanted) == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (
            {"allowPrivilegeEscalation": None},
            'allowPrivilegeEscalation != false (container "app" must set '
            "securityContext.allowPrivilegeEscalation=false)",
        ),
        (
            {"capabilities": {"add": ["CHOWN"]}},
            'unrestricted capabilities (container "app" must set securityContext.capabilities.drop=["ALL"]; '
            'container "app" must not include "CHOWN" in securityContext.capabilities.add)',
        ),
        (
            {"runAsNonRoot": None},
            'runAsNonRoot != true (pod or container "app" must set securityContext.runAsNonRoot=true)',
        ),
        (
            {"runAsNonRoot": False},
            'runAsNonRoot != true (container "app" must not set securityContext.runAsNonRoot=false)',
        ),
        ({"runAsUser": 0}, 'runAsUser=0 (container "app" must not set runAsUser=0)'),
        (
            {"seccompProfile": None},
            'seccompProfile (pod or container "app" must set securityContext.seccompProfile.type to '
            '"RuntimeDefault" or "Localhost")',
        ),
    ],
)
def test_restricted(change: dict[str, Any], words: str) -> None:
    assert violations("restricted", secured(GOOD)) == ""
    assert violations("restricted", secured({**GOOD, **change})) == words


def test_restricted_volumes() -> None:
    wanted = secured(GOOD)
    wanted["spec"]["volumes"] = [{"name": "n", "nfs": {}}, {"name": "h", "hostPath": {}}, {"name": "e", "emptyDir": {}}]
    assert violations("restricted", wanted) == (
        'restricted volume types (volumes "n", "h" use restricted volume types "hostPath", "nfs")'
    )


def test_pod_settings_apply_to_containers_without_own() -> None:
    wanted = secured({"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}})
    wanted["spec"]["securityContext"] = {"runAsNonRoot": True, "seccompProfile": {"type": "Localhost"}}
    assert violations("restricted", wanted) == ""


def test_exemptions_for_user_namespaces_and_windows() -> None:
    assert violations("baseline", {**secured({"procMount": "Unmasked"}), "spec": {"hostUsers": False}}) == ""
    windows = pod(os={"name": "windows"}, securityContext={"runAsNonRoot": True})
    assert violations("restricted", windows) == ""


@pytest.mark.parametrize("kind", ["initContainers", "ephemeralContainers"])
def test_all_containers_are_checked(kind: str) -> None:
    spec: dict[str, Any] = {kind: [container("x", securityContext={"privileged": True})]}
    assert 'container "x"' in violations("baseline", pod(**spec))
