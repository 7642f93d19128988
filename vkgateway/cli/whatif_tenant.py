"""Effects of the guarantees of a new tenant, printed on standard error."""

from __future__ import annotations

import contextlib
import sys
from pathlib import Path

import click

from vkgateway.api.errors import VkgatewayError
from vkgateway.api.types import Tenant
from vkgateway.cli import gateway_state, whatif_options
from vkgateway.cli.gateway_state import GatewayEndpoint


async def print_what_if(tenant: Tenant, data_dir: Path, gateway: GatewayEndpoint) -> None:
    """Print the gateway's answer for each pool of the tenant with a guarantee.

    If the gateway is unavailable, print a note: the tenant was validated without it.
    """
    from vkgateway.cli import whatif_text

    for question in whatif_options.guarantee_questions(tenant.metadata.name, tenant.spec.pools):
        try:
            answer = await gateway_state.ask_what_if(question, data_dir, gateway)
        except VkgatewayError as error:
            hint = f" {error.hint}" if error.hint else ""
            click.echo(f"The effect of the guarantee in {question.pool} is unknown: {error}.{hint}", err=True)
            continue
        with contextlib.redirect_stdout(sys.stderr):
            click.echo()
            whatif_text.print_text(answer)
