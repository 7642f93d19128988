"""Mutating webhooks for API servers without mutating policies.

`/admission/gate` adds scheduling gates to pods. `/admission/job` makes Jobs ignore evictions.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final

import msgspec

from vkgateway.api.errors import InputError
from vkgateway.api.objects import Object
from vkgateway.kinds.pods.policy.admission_review import review_job, review_pod
from vkgateway.nodes.call import Call
from vkgateway.nodes.http import Reply

_WEBHOOKS: Final[Mapping[str, Callable[[Any], Object]]] = {"gate": review_pod, "job": review_job}


async def serve_admission(call: Call, webhook: str) -> Reply:
    """Answer an AdmissionReview. The answer is the same for all admitted tenants."""
    review = _WEBHOOKS.get(webhook)
    if review is None:
        return Reply.from_text(404, "the gateway answers /admission/gate and /admission/job only")
    try:
        answer = review(msgspec.json.decode(call.request.body))
    except (msgspec.DecodeError, InputError) as error:
        return Reply.from_text(400, str(error))
    return Reply(200, msgspec.json.encode(answer), "application/json")
