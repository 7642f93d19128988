"""With a proxy in the environment, `up` prints how kubectl reaches the platform without it."""

import pytest

from vkgateway_platform.embedded.proxies import no_proxy

ADDRESS = "10.213.0.1"
PROXY = {"HTTPS_PROXY": "http://proxy:3128"}


@pytest.mark.parametrize(
    ("environment", "wanted"),
    [
        ({}, None),
        ({"HTTPS_PROXY": ""}, None),
        (PROXY, ADDRESS),
        ({"https_proxy": "http://proxy:3128"}, ADDRESS),
        (PROXY | {"NO_PROXY": "localhost, .example.com"}, f"localhost,.example.com,{ADDRESS}"),
        (PROXY | {"no_proxy": "10.0.0.0/16"}, f"10.0.0.0/16,{ADDRESS}"),
        (PROXY | {"NO_PROXY": "10.0.0.0/8"}, None),
        (PROXY | {"NO_PROXY": f"localhost,{ADDRESS}"}, None),
        (PROXY | {"NO_PROXY": "*"}, None),
    ],
)
def test_no_proxy_includes_the_address(environment: dict[str, str], wanted: str | None) -> None:
    assert no_proxy(environment, address=ADDRESS) == wanted
