"""Webhook responses that add the scheduling gate to a new pod, and make a new Job ignore evictions."""

import base64
from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.api.names import ADMISSION_GATE
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.translation.conditions import DISRUPTION_CONDITION
from vkgateway.scheduler.governed import has_gate, is_governed

_REVIEW_VERSION: Final = "admission.k8s.io/v1"
_GATES: Final = "/spec/schedulingGates"
_GATE: Final = {"name": ADMISSION_GATE}
_IGNORED: Final = {"type": DISRUPTION_CONDITION, "status": "True"}
_IGNORE_EVICTIONS: Final[tuple[Object, ...]] = (
    {
        "op": "add",
        "path": "/spec/podFailurePolicy",
        "value": {"rules": [{"action": "Ignore", "onPodConditions": [_IGNORED]}]},
    },
    # Kubernetes allows no other value with podFailurePolicy. Adding a field that exists replaces it.
    {"op": "add", "path": "/spec/podReplacementPolicy", "value": "Failed"},
)

_NewObject = Mapping[str, Any]


def review_pod(review: Any) -> Object:
    """Answer an AdmissionReview for a new pod: allowed, and gated if the pod must wait for the arbiter.

    Raises:
        InputError: the document is not an AdmissionReview with a request, or its version is not v1.
    """
    return _answer_review(review, "Pod", _gate_patch)


def review_job(review: Any) -> Object:
    """Answer an AdmissionReview for a new Job: allowed, and with a rule that ignores evictions if it has no policy.

    Raises:
        InputError: the document is not an AdmissionReview with a request, or its version is not v1.
    """
    return _answer_review(review, "Job", _eviction_patch)


def _answer_review(review: Any, kind: str, make_patch: Callable[[_NewObject], list[Object]]) -> Object:
    """Answer an AdmissionReview: allowed, and with a JSON patch if the object is new and of that kind.

    https://kubernetes.io/docs/reference/access-authn-authz/extensible-admission-controllers/
    """
    request = review.get("request") if isinstance(review, Mapping) else None
    if not isinstance(request, Mapping) or not isinstance(request.get("uid"), str):
        raise InputError("the document is not an AdmissionReview with a request")
    if review.get("apiVersion") != _REVIEW_VERSION:
        raise InputError(f"AdmissionReview must have version {_REVIEW_VERSION}, not {review.get('apiVersion')}")
    response: Object = {"uid": request["uid"], "allowed": True}
    if patch := make_patch(_new_object(request, kind)):
        encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
        response |= {"patchType": "JSONPatch", "patch": encoded}
    return {"apiVersion": _REVIEW_VERSION, "kind": "AdmissionReview", "response": response}


def _new_object(request: Mapping[str, Any], kind: str) -> _NewObject:
    """Return the object that the request creates; empty if it creates none of that kind."""
    new, asked_kind = request.get("object"), (request.get("kind") or {}).get("kind")
    is_new = asked_kind == kind and request.get("operation") == "CREATE"
    return new if is_new and isinstance(new, Mapping) else {}


def _gate_patch(pod: _NewObject) -> list[Object]:
    """Return the JSON patch that gates a pod. It is empty if the pod has a node or is not governed."""
    spec = pod.get("spec") or {}
    if spec.get("nodeName") or has_gate(pod) or not is_governed(pod):
        return []
    if spec.get("schedulingGates"):
        return [{"op": "add", "path": f"{_GATES}/-", "value": _GATE}]
    return [{"op": "add", "path": _GATES, "value": [_GATE]}]


def _eviction_patch(job: _NewObject) -> list[Object]:
    """Return the JSON patch for evictions. It is empty if a Job has a policy, or if Kubernetes allows it none."""
    spec = job.get("spec") or {}
    template = (spec.get("template") or {}).get("spec") or {}
    if spec.get("podFailurePolicy") is not None or template.get("restartPolicy") != "Never":
        return []
    return list(_IGNORE_EVICTIONS)
