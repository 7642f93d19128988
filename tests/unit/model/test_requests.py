"""Resource requests of pods."""

from vkgateway.api.requests import pod_requests, render_milli, to_milli


def test_limit_without_request_is_the_request() -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "nvidia.com/gpu": "8"}}
    pod = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    assert pod_requests(pod) == {"cpu": 500, "nvidia.com/gpu": 8000, "pods": 1000}


def test_bytes_are_rendered_with_binary_suffix() -> None:
    asked = {"cpu": "50m", "memory": "10Mi", "hugepages-2Mi": "1Gi", "example.com/part": "2048"}
    shown = "cpu 50m, memory 10Mi, hugepages-2Mi 1Gi, example.com/part 2048"
    assert render_milli(to_milli(asked)) == shown
