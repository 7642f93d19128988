"""Logging of the daemon: one line per event on standard error, as text or JSON."""

from __future__ import annotations

import contextlib
import io
import logging
import sys
from typing import TextIO, cast

import structlog

from vkgateway.settings.config import Logging


class LossyStream(io.TextIOBase):
    """Stream that drops lines that cannot be written, for example because of a full disk or a closed pipe.

    Logging must not cause further failures. A closed stream raises ValueError.
    """

    def __init__(self, stream: TextIO) -> None:
        super().__init__()
        self._stream = stream

    def write(self, text: str, /) -> int:
        """See io.TextIOBase."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        """See io.TextIOBase."""
        with contextlib.suppress(OSError, ValueError):
            self._stream.flush()


def configure_logging(settings: Logging) -> None:
    """Configure structlog, and send the standard library's logging to the same stream."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    final: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        # Plain tracebacks: those of rich show local variables, which may hold Secrets.
        else structlog.dev.ConsoleRenderer(
            colors=sys.stderr.isatty(), exception_formatter=structlog.dev.plain_traceback
        )
    )
    processors: list[structlog.typing.Processor] = [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
    ]
    if settings.format == "json":
        processors.append(structlog.processors.format_exc_info)
    structlog.configure(
        processors=[*processors, final],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.PrintLoggerFactory(cast("TextIO", LossyStream(sys.stderr))),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s %(message)s"
    )
