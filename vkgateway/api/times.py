"""Conversion between Kubernetes timestamps (RFC 3339, UTC) and datetimes. Reads no clock."""

from datetime import UTC, datetime


def parse_time(text: str) -> datetime:
    """Return a Kubernetes timestamp (`metav1.Time` or `MicroTime`) as an aware datetime in UTC.

    Raises:
        ValueError: The text is not an RFC 3339 time.
    """
    moment = datetime.fromisoformat(text)
    if moment.tzinfo is None:
        raise ValueError(f"time {text!r} has no zone")
    return moment.astimezone(UTC)


def parse_seconds(text: str | None) -> float:
    """Return a Kubernetes timestamp in seconds since the epoch; 0 for none. Raises ValueError as `parse_time`."""
    return parse_time(text).timestamp() if text else 0.0


def render_time(moment: datetime) -> str:
    """Return an aware datetime as `metav1.Time`: whole seconds, UTC, `Z`."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def render_micro_time(moment: datetime) -> str:
    """Return an aware datetime as `metav1.MicroTime`: microseconds, UTC, `Z` (Leases, events.k8s.io)."""
    return moment.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%S.%fZ")
