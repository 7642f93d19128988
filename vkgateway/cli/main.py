"""The command `vkgateway`: runs the command asked for; what goes wrong becomes one sentence and an exit code.

Exit codes: 0 done, 1 failed, 2 bad input, 3 not found, 4 conflict (taken or busy), 5 unavailable (a program
is missing, a server does not answer), 130 interrupted.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping, Sequence

import click

from vkgateway.cli.lazy_group import LazyGroup
from vkgateway.cli.options import root_data_dir_option
from vkgateway.model.errors import InputError, VkgatewayError
from vkgateway.version import __version__

FAILURE = 1
INTERRUPTED = 130

COMMANDS: Mapping[str, str] = {
    "up": "vkgateway.cli.platform:up",
    "down": "vkgateway.cli.platform:down",
    "status": "vkgateway.cli.platform:status",
    "logs": "vkgateway.cli.platform:logs",
    "tenant": "vkgateway.cli.tenant:tenant",
    "compute": "vkgateway.cli.compute:compute",
    "queue": "vkgateway.cli.queue:queue",
    "explain": "vkgateway.cli.explain:explain",
    "whatif": "vkgateway.cli.whatif:whatif",
    "top": "vkgateway.cli.top:top",
    "usage": "vkgateway.cli.usage:usage",
    "replay": "vkgateway.cli.replay:replay",
    "simulate": "vkgateway.cli.simulate:simulate",
    "image": "vkgateway.cli.image:image",
    "conformance": "vkgateway.cli.conformance:conformance",
    "binaries": "vkgateway.cli.binaries:binaries",
    "serve": "vkgateway.cli.serve:serve",
    "version": "vkgateway.cli.version:version",
    "completion": "vkgateway.cli.completion:completion",
}
"""Command name to `module:attribute`; the module is imported only when the command is asked for."""

HELP = """A Kubernetes for every team, one pool of GPUs below.

\b
Start here:
  vkgateway up
  vkgateway tenant create alpha --pool a100:guarantee=nvidia.com/gpu=8
  vkgateway tenant kubeconfig alpha -f alpha.kubeconfig
  kubectl --kubeconfig alpha.kubeconfig get nodes
"""

EPILOG = (
    "Exit codes: 0 done, 1 failed, 2 bad input, 3 not found, 4 conflict (taken or busy), "
    "5 unavailable (program missing, server does not answer), 130 interrupted."
)

_NO_HOME = "home directory"
"""What pathlib says where HOME is not set and the user is unknown, or the one named in `~user`."""
_NO_HOME_MESSAGE = "a path starts from a home directory, and there is none: of an unknown user, or HOME is not set"


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
    """Only holds the commands; what each does is in its own file."""


def main(argv: Sequence[str] | None = None) -> None:
    """Entry point of the console script: run and leave with the exit code."""
    _open_closed_streams()
    sys.exit(run_command(argv))


def run_command(argv: Sequence[str] | None = None) -> int:
    """Run one command line and return its exit code; nothing but a bug in this program raises."""
    try:
        result = cli.main(args=argv, prog_name="vkgateway", standalone_mode=False)
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


def _open_closed_streams() -> None:
    """Give what was started without a standard stream (`2>&-`) an empty one, before a file gets its number."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))  # noqa: SIM115 - for as long as we live


def print_error(message: str, *, hint: str = "") -> None:
    """One sentence on standard error that says what is wrong, and one that says the way out."""
    click.secho("Error: ", fg="red", bold=True, nl=False, err=True)
    click.echo(message, err=True)
    if hint:
        click.echo(f"       {hint}", err=True)


def _report_system_error(error: OSError | RuntimeError) -> int:
    """Tell what the system refused, and return the exit code; what is a bug is raised."""
    if isinstance(error, OSError):
        print_error(_os_error_message(error))
        return FAILURE
    if _NO_HOME not in str(error):
        raise error
    print_error(_NO_HOME_MESSAGE, hint="Set HOME, or write out paths that begin with `~`.")
    return InputError.exit_code


def _os_error_message(error: OSError) -> str:
    what = error.strerror or str(error) or type(error).__name__
    return f"{error.filename}: {what}" if error.filename else what


def _silence_stdout() -> None:
    """The reader of our output went away (`| head`): do not complain again when Python flushes at exit."""
    devnull = os.open(os.devnull, os.O_WRONLY)
    os.dup2(devnull, sys.stdout.fileno())
