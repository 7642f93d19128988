"""Gate conditions that belong to the tenant, and their copy to the compute pod."""

import copy

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.fakes.patches import apply_strategic_patch
from tests.unit.translate.samples import forward, pod
from vkgateway.api.objects import Object
from vkgateway.kinds.metadata import tenant_gates
from vkgateway.kinds.pods.translation.conditions import gate_conditions_patch

AT = "2026-03-01T12:00:00Z"
KUBERNETES = ["Ready", "ContainersReady", "PodScheduled", "Initialized", "DisruptionTarget", "PodResizePending"]


def gates_of(*kinds: str) -> tuple[str, ...]:
    gated = pod(readinessGates=[{"conditionType": kind} for kind in kinds])
    return tenant_gates(forward(gated)["metadata"]["annotations"])


def test_tenant_gates_exclude_conditions_of_others() -> None:
    assert gates_of("example.org/warm", *KUBERNETES, "vkgateway.io/Forwarded", "b", "b") == ("example.org/warm", "b")
    assert gates_of() == ()


@pytest.mark.parametrize(
    ("tenant_conditions", "compute_conditions", "patch"),
    [
        ([], [], []),
        ([{"type": "g", "status": "True"}], [], [{"type": "g", "status": "True"}]),
        ([{"type": "other", "status": "True"}, {"type": "Ready", "status": "True"}], [], []),
        ([], [{"type": "g", "status": "True"}], [{"$patch": "delete", "type": "g"}]),
        (
            [{"type": "g", "status": "False", "message": None, "lastTransitionTime": AT, "observedGeneration": 7}],
            [{"type": "g", "status": "False", "lastProbeTime": None, "lastTransitionTime": AT}],
            [],
        ),
        (
            [{"type": "g", "status": "False"}],
            [{"type": "g", "status": "True", "reason": "Warm"}],
            [{"type": "g", "status": "False", "reason": None}],
        ),
    ],
)
def test_gate_patch_contains_only_differences(
    tenant_conditions: list[Object], compute_conditions: list[Object], patch: list[Object]
) -> None:
    assert gate_conditions_patch(tenant_conditions, compute_conditions, ("g",)) == patch


conditions = st.lists(
    st.fixed_dictionaries(
        {
            "type": st.sampled_from(["g", "h", "Ready", "other"]),
            "status": st.sampled_from(["True", "False", "Unknown"]),
        },
        optional={"reason": st.sampled_from(["", "Why"]), "message": st.text(max_size=3), "lastProbeTime": st.none()},
    ),
    unique_by=lambda entry: entry["type"],
    max_size=4,
)


@given(conditions, conditions)
def test_gate_patch_leaves_other_conditions(tenant_conditions: list[Object], compute_conditions: list[Object]) -> None:
    before = {"conditions": copy.deepcopy(compute_conditions)}
    patch = gate_conditions_patch(tenant_conditions, compute_conditions, ("g", "h"))
    after = apply_strategic_patch(before, {"conditions": patch})["conditions"] if patch else compute_conditions
    assert gate_conditions_patch(tenant_conditions, after, ("g", "h")) == []
    assert [entry for entry in after if entry["type"] not in "gh"] == [
        entry for entry in compute_conditions if entry["type"] not in "gh"
    ]
    assert {entry["type"]: entry["status"] for entry in after if entry["type"] in "gh"} == {
        entry["type"]: entry["status"] for entry in tenant_conditions if entry["type"] in "gh"
    }
