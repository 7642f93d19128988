"""The command `vkgateway`: runs a subcommand and turns errors into one sentence and an exit code.

Exit codes: 0 success, 1 failure, 2 invalid input, 3 not found, 4 conflict, 5 unavailable (a program is missing or a
server is unreachable), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from vkgateway.api.errors import InputError, VkgatewayError
from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.options import root_data_dir_option
from vkgateway.version import __version__

FAILURE = 1
INTERRUPTED = 130

COMMANDS: Mapping[str, str] = {
    "up": "vkgateway_platform.cli.platform:up",
    "down": "vkgateway_platform.cli.platform:down",
    "status": "vkgateway_platform.cli.platform:status",
    "logs": "vkgateway_platform.cli.platform:logs",
    "tenant": "vkgateway.cli.tenant:tenant",
    "compute": "vkgateway.cli.compute:compute",
    "check": "vkgateway.cli.check:check",
    "queue": "vkgateway.cli.queue:queue",
    "explain": "vkgateway.cli.explain:explain",
    "whatif": "vkgateway.cli.whatif:whatif",
    "top": "vkgateway.cli.top:top",
    "ui": "vkgateway.cli.ui:ui",
    "usage": "vkgateway.cli.usage:usage",
    "replay": "vkgateway.cli.replay:replay",
    "simulate": "vkgateway_platform.cli.simulate:simulate",
    "image": "vkgateway_platform.cli.image:image",
    "conformance": "vkgateway_platform.cli.conformance:conformance",
    "binaries": "vkgateway_platform.cli.binaries:binaries",
    "serve": "vkgateway.cli.serve:serve",
    "version": "vkgateway.cli.version:version",
    "completion": "vkgateway.cli.completion:completion",
}
"""Subcommand name to `module:attribute`; the module is imported when the subcommand runs. The embedded platform's
commands appear if its package is installed.
"""

HELP = """A Kubernetes cluster for every team, on one shared pool of GPUs.

\b
Get started:
  vkgateway up
  vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=8
  vkgateway tenant kubeconfig alpha -f alpha.kubeconfig
  kubectl --kubeconfig alpha.kubeconfig get nodes
"""

EPILOG = (
    "Exit codes: 0 success, 1 failure, 2 invalid input, 3 not found, 4 conflict, "
    "5 unavailable (program missing, server unreachable), 130 interrupted."
)

_NO_HOME = "home directory"
"""Part of pathlib's message if HOME is not set, or if the user in `~user` is unknown."""
_NO_HOME_MESSAGE = "cannot expand ~ in a path: HOME is not set, or the user does not exist"


@click.group(
    cls=LazyGroup,
    lazy=COMMANDS,
    help=HELP,
    epilog=EPILOG,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
)
@click.version_option(__version__, "--version", message="vkgateway %(version)s")
@root_data_dir_option
def cli() -> None:
    """Group all subcommands."""


def main(argv: Sequence[str] | None = None) -> None:
    """Run the console script and exit with its exit code."""
    open_closed_streams()
    sys.exit(run_command(argv))


def run_command(argv: Sequence[str] | None = None, *, group: click.Group = cli, program: str = "vkgateway") -> int:
    """Run one command line of a group of commands and return its exit code; raises only because of bugs."""
    try:
        result = group.main(args=argv, prog_name=program, standalone_mode=False)
    except (click.Abort, KeyboardInterrupt):
        click.echo("Interrupted.", err=True)
        return INTERRUPTED
    except click.ClickException as error:
        error.show()
        return error.exit_code
    except VkgatewayError as error:
        print_error(str(error), hint=error.hint)
        return error.exit_code
    except BrokenPipeError:
        _silence_stdout()
        return FAILURE
    except (OSError, RuntimeError) as error:
        return _report_system_error(error)
    return result if isinstance(result, int) else 0


def open_closed_streams() -> None:
    """Open /dev/null for closed standard streams (`2>&-`), before another file gets their descriptor."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - open until the process ends


def print_error(message: str, *, hint: str = "") -> None:
    """Print an error and a hint on standard error."""
    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(message, err=True)
    if hint:
        click.echo(f"       {hint}", err=True)


def _report_system_error(error: OSError | RuntimeError) -> int:
    """Print an error of the operating system and return the exit code; raise errors that are bugs."""
    if isinstance(error, OSError):
        print_error(_os_error_message(error))
        return FAILURE
    if _NO_HOME not in str(error):
        raise error
    print_error(_NO_HOME_MESSAGE, hint="Set HOME, or use absolute paths.")
    return InputError.exit_code


def _os_error_message(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _silence_stdout() -> None:
    """Redirect standard output to /dev/null after a broken pipe (`| head`), so that the flush at exit succeeds."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
