"""Parts of the descriptions that `describe` prints."""

import pytest

from vkgateway.cli.description import resource_list


@pytest.mark.parametrize(
    ("resources", "printed"),
    [
        ({}, "-"),
        ({"nvidia.com/gpu": 8, "cpu": "3900m"}, "cpu=3900m, nvidia.com/gpu=8"),
        ({"memory": "24677276Ki"}, "memory=23.5Gi"),
        ({"memory": "4Ti", "ephemeral-storage": "103079215104"}, "ephemeral-storage=96Gi, memory=4Ti"),
        ({"memory": "1000Gi", "hugepages-2Mi": "0"}, "hugepages-2Mi=0, memory=1000Gi"),
        ({"memory": 512}, "memory=512"),
    ],
)
def test_bytes_have_a_unit(resources: dict[str, str | int], printed: str) -> None:
    assert resource_list(resources) == printed
