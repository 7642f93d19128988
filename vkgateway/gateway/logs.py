"""How the daemon logs: one line an event on standard error, text for people or JSON for programs."""

from __future__ import annotations

import logging
import sys

import structlog

from vkgateway.gateway.config import Logging


def configure(settings: Logging) -> None:
    """Set structlog up; libraries that use Python's own logging go to the same place."""
    level = logging.getLevelNamesMapping()[settings.level.upper()]
    final: structlog.typing.Processor = (
        structlog.processors.JSONRenderer()
        if settings.format == "json"
        # Not rich's tracebacks, which show local variables: those may be Secrets.
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
        logger_factory=structlog.PrintLoggerFactory(sys.stderr),
        cache_logger_on_first_use=True,
    )
    logging.basicConfig(
        stream=sys.stderr, level=max(level, logging.WARNING), format="%(levelname)s %(name)s %(message)s"
    )
