"""What a pod asks of a node."""

from vkgateway.model.requests import pod_requests, render_milli, to_milli


def test_a_limit_is_a_request_where_none_is_named() -> None:
    resources = {"requests": {"cpu": "500m"}, "limits": {"cpu": "2", "nvidia.com/gpu": "8"}}
    pod = {"spec": {"containers": [{"name": "main", "resources": resources}]}}
    assert pod_requests(pod) == {"cpu": 500, "nvidia.com/gpu": 8000, "pods": 1000}


def test_bytes_are_shown_as_people_write_them() -> None:
    asked = {"cpu": "50m", "memory": "10Mi", "hugepages-2Mi": "1Gi", "example.com/part": "2048"}
    shown = "cpu 50m, memory 10Mi, hugepages-2Mi 1Gi, example.com/part 2048"
    assert render_milli(to_milli(asked)) == shown
