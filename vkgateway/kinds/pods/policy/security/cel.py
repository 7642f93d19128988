"""Rules of `levels` in CEL: each a list with the plugin's message for a broken rule, or empty.

If several containers or values break one rule, they are listed in the pod's order: CEL of Kubernetes 1.30 cannot sort.
The expressions use `variables.containers` and `variables.volumes`.
"""

import json
from collections.abc import Iterable, Mapping
from typing import Final

from vkgateway.api.types import PodSecurity
from vkgateway.kinds.pods.policy.security import baseline, restricted
from vkgateway.kinds.pods.policy.security.levels import rule_names

_CONTEXT: Final = "?securityContext"
_USER_NAMESPACE: Final = "!object.spec.?hostUsers.orValue(true)"
_WINDOWS: Final = "object.spec.?os.?name.orValue('') == 'windows'"


def violations_expression(level: PodSecurity) -> str:
    """Return an expression for the messages of a level's broken rules, `[]` for level `privileged`."""
    start = f'violates PodSecurity "{level}:latest": '
    return " + ".join(f"{_RULES[rule]}.map(m, {json.dumps(start)} + m)" for rule in rule_names(level)) or "[]"


def _container_names(condition: str) -> str:
    """Return an expression for the names of the containers `c` that meet a condition."""
    return f"variables.containers.filter(c, {condition}).map(c, c.name)"


def _plural_noun(count: str, singular: str) -> str:
    return f"({count} == 1 ? {json.dumps(singular)} : {json.dumps(singular + 's')})"


def _quoted_values(values: str) -> str:
    return f"""'"' + {values}.join('", "') + '"'"""


def _named_containers(names: str) -> str:
    return f"{_plural_noun(names + '.size()', 'container')} + ' ' + {_quoted_values(names)}"


def _uses_verb(names: str) -> str:
    return f"({names}.size() == 1 ? ' uses ' : ' use ')"


def _finding_expression(items: str, reason: str, detail: str) -> str:
    """Return an expression for reason and detail if there are items. `detail` is an expression of the items, `b`."""
    return f"[{items}].filter(b, b.size() > 0).map(b, {reason} + ' (' + {detail} + ')')"


def _list_literal(values: Iterable[str]) -> str:
    return json.dumps(sorted(values))


def _setter_names(in_pod: str, condition: str) -> str:
    """Return an expression for the setters that meet a condition (pod, containers or both), as a list of texts."""
    containers = f"[{_container_names(condition)}].filter(n, n.size() > 0).map(n, {_named_containers('n')})"
    return f"(({in_pod}) ? ['pod'] : []) + {containers}"


def _set_values(in_pod: str, pod_value: str, condition: str, value: str) -> str:
    """Return an expression for the values that the pod and its containers `c` set, if they meet a condition."""
    return f"((({in_pod}) ? [{pod_value}] : []) + variables.containers.filter(c, {condition}).map(c, {value}))"


def _must_not_set(field: str, allowed: Iterable[str]) -> tuple[str, str]:
    """Return conditions of the pod and of a container `c` that a field is set to a value that is not allowed."""
    outside = f"!(%s.{_CONTEXT}.{field}.orValue({json.dumps(min(allowed))}) in {_list_literal(allowed)})"
    return outside % "object.spec", outside % "c"


def _forbidden_types(field: str, allowed: Iterable[str]) -> tuple[str, str, str]:
    """Return the conditions of `_must_not_set`, and the values that break them."""
    in_pod, in_container = _must_not_set(field, allowed)
    values = _set_values(
        in_pod,
        f"object.spec.{_CONTEXT}.{field}.orValue('')",
        in_container,
        f"c.{_CONTEXT}.{field}.orValue('')",
    )
    return in_pod, in_container, values


def _app_armor() -> str:
    in_pod, in_container, types = _forbidden_types("?appArmorProfile.?type", ("RuntimeDefault", "Localhost"))
    all_annotations = "object.metadata.?annotations.orValue({})"
    value = f"{all_annotations}[k]"
    allowed = f"{value} in ['', 'runtime/default'] || {value}.startsWith('localhost/')"
    keys = f"{all_annotations}.filter(k, k.startsWith({json.dumps(baseline.APPARMOR_ANNOTATION)}) && !({allowed}))"
    annotations = f"""{keys}.map(k, k + '="' + {value} + '"')"""
    values = f"({types} + {annotations})"
    by_annotation = f"[{keys}].filter(n, n.size() > 0).map(n, {_plural_noun('n.size()', 'annotation')})"
    who = f"({_setter_names(in_pod, in_container)} + {by_annotation}).join(' and ')"
    reason = _plural_noun("b.size()", "forbidden AppArmor profile")
    return _finding_expression(
        values, reason, f"{who} + ' must not set AppArmor profile type to ' + {_quoted_values('b')}"
    )


def _added_capabilities(allowed: Iterable[str]) -> str:
    return f"c.{_CONTEXT}.?capabilities.?add.orValue([]).filter(x, !(x in {_list_literal(allowed)}))"


def _must_not_add(allowed: Iterable[str]) -> tuple[str, str]:
    """Return expressions for the containers that add other capabilities than allowed, and for the message about `b`."""
    added = _added_capabilities(allowed)
    each = f"""variables.containers.filter(c, {added}.size() > 0).map(c, {_quoted_values(added)}).join(', ')"""
    detail = f"{_named_containers('b')} + ' must not include ' + {each} + ' in securityContext.capabilities.add'"
    return _container_names(f"{added}.size() > 0"), detail


def _capabilities_baseline() -> str:
    names, detail = _must_not_add(baseline.DEFAULT_CAPABILITIES)
    return _finding_expression(names, json.dumps("non-default capabilities"), detail)


def _host_namespaces() -> str:
    used = "['hostNetwork', 'hostPID', 'hostIPC'].filter(f, f in object.spec && object.spec[f])"
    return _finding_expression(used, json.dumps("host namespaces"), "b.map(f, f + '=true').join(', ')")


def _host_paths() -> str:
    names = "variables.volumes.filter(v, has(v.hostPath)).map(v, v.name)"
    detail = f"{_plural_noun('b.size()', 'volume')} + ' ' + {_quoted_values('b')}"
    return _finding_expression(names, json.dumps("hostPath volumes"), detail)


def _host_ports() -> str:
    ports = "c.?ports.orValue([]).map(p, p.?hostPort.orValue(0)).filter(p, p != 0).map(p, string(p))"
    used = f"variables.containers.filter(c, {ports}.size() > 0)"
    each = f"{used}.map(c, {ports}.join(', ')).join(', ')"
    what = f"({each}.contains(', ') ? 'hostPorts ' : 'hostPort ')"
    detail = f"{_named_containers('b')} + {_uses_verb('b')} + {what} + {each}"
    return _finding_expression(f"{used}.map(c, c.name)", json.dumps("hostPort"), detail)


def _host_probes() -> str:
    handlers = (
        "[c.?livenessProbe, c.?readinessProbe, c.?startupProbe, c.?lifecycle.?postStart, c.?lifecycle.?preStop]"
        ".map(h, h.orValue({}))"
    )
    hosts = " + ".join(f"{handlers}.map(h, h.?{kind}.?host.orValue(''))" for kind in ("httpGet", "tcpSocket"))
    set_hosts = f"({hosts}).filter(h, h != '')"
    each = f"variables.containers.filter(c, {set_hosts}.size() > 0).map(c, {_quoted_values(set_hosts)}).join(', ')"
    what = f"({each}.contains(', ') ? 'probe or lifecycle hosts ' : 'probe or lifecycle host ')"
    detail = f"{_named_containers('b')} + {_uses_verb('b')} + {what} + {each}"
    return _finding_expression(
        _container_names(f"{set_hosts}.size() > 0"), json.dumps("probe or lifecycle host"), detail
    )


def _privileged_containers() -> str:
    detail = f"{_named_containers('b')} + ' must not set securityContext.privileged=true'"
    return _finding_expression(
        _container_names(f"c.{_CONTEXT}.?privileged.orValue(false)"), json.dumps("privileged"), detail
    )


def _proc_mount(unless: str = "false") -> str:
    kind = f"c.{_CONTEXT}.?procMount.orValue('Default')"
    bad = f"!({unless}) && {kind} != 'Default'"
    kinds = f"variables.containers.filter(c, {bad}).map(c, {kind})"
    detail = f"{_named_containers('b')} + ' must not set securityContext.procMount to ' + {_quoted_values(kinds)}"
    return _finding_expression(_container_names(bad), json.dumps("procMount"), detail)


def _selinux_options() -> str:
    def bad_type(of: str) -> str:
        return f"!({of}.{_CONTEXT}.?seLinuxOptions.?type.orValue('') in {_list_literal(baseline.SELINUX_TYPES)})"

    def sets(of: str, field: str) -> str:
        return f"{of}.{_CONTEXT}.?seLinuxOptions.?{field}.orValue('') != ''"

    def bad(of: str) -> str:
        return f"({bad_type(of)} || {sets(of, 'user')} || {sets(of, 'role')})"

    kind = f"%s.{_CONTEXT}.?seLinuxOptions.?type.orValue('')"
    types = _set_values(bad_type("object.spec"), kind % "object.spec", bad_type("c"), kind % "c")
    said = f"[{types}].filter(t, t.size() > 0).map(t, {_plural_noun('t.size()', 'type')} + ' ' + {_quoted_values('t')})"
    for field in ("user", "role"):
        anywhere = f"({sets('object.spec', field)} || variables.containers.exists(c, {sets('c', field)}))"
        said += f" + ({anywhere} ? ['{field} may not be set'] : [])"
    detail = f"b.join(' and ') + ' set forbidden securityContext.seLinuxOptions: ' + ({said}).join('; ')"
    return _finding_expression(_setter_names(bad("object.spec"), bad("c")), json.dumps("seLinuxOptions"), detail)


def _seccomp_baseline() -> str:
    in_pod, in_container, values = _forbidden_types("?seccompProfile.?type", baseline.SECCOMP_TYPES)
    detail = f"b.join(' and ') + ' must not set securityContext.seccompProfile.type to ' + {_quoted_values(values)}"
    return _finding_expression(_setter_names(in_pod, in_container), json.dumps("seccompProfile"), detail)


def _seccomp_restricted() -> str:
    unset = f"!({_WINDOWS}) && !object.spec.{_CONTEXT}.?seccompProfile.hasValue()"
    names = _container_names(f"{unset} && !c.{_CONTEXT}.?seccompProfile.hasValue()")
    detail = f"'pod or ' + {_named_containers('b')} + " + json.dumps(
        ' must set securityContext.seccompProfile.type to "RuntimeDefault" or "Localhost"'
    )
    explicit = f"(({_WINDOWS}) ? [] : {_seccomp_baseline()})"
    return (
        f"({explicit} + ({explicit}.size() > 0 ? [] : "
        f"{_finding_expression(names, json.dumps('seccompProfile'), detail)}))"
    )


def _forbidden_sysctls() -> str:
    every = f"object.spec.{_CONTEXT}.?sysctls.orValue([]).map(s, s.name)"
    bad = f"{every}.filter(s, !(s in {_list_literal(baseline.SAFE_SYSCTLS)}))"
    return _finding_expression(bad, json.dumps("forbidden sysctls"), "b.join(', ')")


def _windows_host_process() -> str:
    bad = f"%s.{_CONTEXT}.?windowsOptions.?hostProcess.orValue(false)"
    detail = "b.join(' and ') + ' must not set securityContext.windowsOptions.hostProcess=true'"
    return _finding_expression(_setter_names(bad % "object.spec", bad % "c"), json.dumps("hostProcess"), detail)


def _privilege_escalation() -> str:
    names = _container_names(f"!({_WINDOWS}) && c.{_CONTEXT}.?allowPrivilegeEscalation.orValue(true)")
    detail = f"{_named_containers('b')} + ' must set securityContext.allowPrivilegeEscalation=false'"
    return _finding_expression(names, json.dumps("allowPrivilegeEscalation != false"), detail)


def _capabilities_restricted() -> str:
    missing = _container_names(f"!('ALL' in c.{_CONTEXT}.?capabilities.?drop.orValue([]))")
    drop = f"{_named_containers('b')} + " + json.dumps(' must set securityContext.capabilities.drop=["ALL"]')
    adding, detail = _must_not_add(("NET_BIND_SERVICE",))
    said = [f"[{names}].filter(b, b.size() > 0).map(b, {text})" for names, text in ((missing, drop), (adding, detail))]
    parts = f"(({_WINDOWS}) ? [] : {said[0]} + {said[1]})"
    return _finding_expression(parts, json.dumps("unrestricted capabilities"), "b.join('; ')")


def _restricted_volumes() -> str:
    kinds = "v.filter(k, k != 'name')"
    allowed = f"{kinds}.size() == 0 || {kinds}.exists(k, k in {_list_literal(restricted.RESTRICTED_VOLUMES)})"
    bad = f"variables.volumes.filter(v, !({allowed}))"
    found = f"{bad}.map(v, {kinds}[0])"
    detail = (
        f"{_plural_noun('b.size()', 'volume')} + ' ' + {_quoted_values('b')} + {_uses_verb('b')}"
        f" + {_plural_noun(found + '.size()', 'restricted volume type')} + ' ' + {_quoted_values(found)}"
    )
    return _finding_expression(f"{bad}.map(v, v.name)", json.dumps("restricted volume types"), detail)


def _run_as_non_root() -> str:
    pod = f"object.spec.{_CONTEXT}.?runAsNonRoot"
    own = f"c.{_CONTEXT}.?runAsNonRoot"
    explicit = _setter_names(f"!{pod}.orValue(true)", f"!{own}.orValue(true)")
    must_not = "b.join(' and ') + ' must not set securityContext.runAsNonRoot=false'"
    implicit = _container_names(f"!{own}.hasValue() && !{pod}.orValue(false)")
    must = f"'pod or ' + {_named_containers('b')} + ' must set securityContext.runAsNonRoot=true'"
    reason = json.dumps("runAsNonRoot != true")
    first = _finding_expression(explicit, reason, must_not)
    second = f"(({explicit}).size() > 0 ? [] : {_finding_expression(implicit, reason, must)})"
    return f"(({_USER_NAMESPACE}) ? [] : {first} + {second})"


def _run_as_user() -> str:
    bad = f"!({_USER_NAMESPACE}) && %s.{_CONTEXT}.?runAsUser.orValue(1) == 0"
    detail = "b.join(' and ') + ' must not set runAsUser=0'"
    return _finding_expression(_setter_names(bad % "object.spec", bad % "c"), json.dumps("runAsUser=0"), detail)


_RULES: Final[Mapping[str, str]] = {
    "allowPrivilegeEscalation": _privilege_escalation(),
    "appArmorProfile": _app_armor(),
    "capabilities_baseline": _capabilities_baseline(),
    "capabilities_restricted": _capabilities_restricted(),
    "hostNamespaces": _host_namespaces(),
    "hostPathVolumes": _host_paths(),
    "hostPorts": _host_ports(),
    "hostProbesAndHostLifecycle": _host_probes(),
    "privileged": _privileged_containers(),
    "procMount": _proc_mount(unless=_USER_NAMESPACE),
    "procMount_restricted": _proc_mount(),
    "restrictedVolumes": _restricted_volumes(),
    "runAsNonRoot": _run_as_non_root(),
    "runAsUser": _run_as_user(),
    "seLinuxOptions": _selinux_options(),
    "seccompProfile_baseline": _seccomp_baseline(),
    "seccompProfile_restricted": _seccomp_restricted(),
    "sysctls": _forbidden_sysctls(),
    "windowsHostProcess": _windows_host_process(),
}
