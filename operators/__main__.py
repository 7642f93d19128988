"""`python -m operators NAME...`: builds kits for pages of docs into `.operators/NAME`, with a cache."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path

from operators.build import build_kit
from operators.catalogue import KITS
from vkgateway.api.errors import VkgatewayError
from vkgateway.cli.main import print_error
from vkgateway.cli.progress import Progress

FOLDER = Path(__file__).resolve().parents[1] / ".operators"


def main(names: Sequence[str]) -> int:
    """Build the kits, and return the exit code."""
    if not names or set(names) - set(KITS):
        print_error(f"choose from: {', '.join(KITS)}", hint="Their pages are in docs/operators and docs/how-to.")
        return 2
    try:
        with Progress() as progress:
            for name in names:
                asyncio.run(build_kit(KITS[name], FOLDER / name, report=progress))
                progress.done(f"operator {name}: {FOLDER / name}")
                if KITS[name].usage:
                    progress.done(KITS[name].usage)
    except VkgatewayError as error:
        print_error(str(error), hint=error.hint)
        return error.exit_code
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
