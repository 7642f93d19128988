"""What both protocols of remote commands share: channels by name, events, and the error of a broken peer."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, Protocol

Channel = Literal["stdin", "stdout", "stderr", "error", "resize"]
CHANNELS: tuple[Channel, ...] = ("stdin", "stdout", "stderr", "error", "resize")
"""In the order of their numbers: k8s.io/apimachinery/pkg/util/remotecommand/constants.go."""
LONGEST_FRAME = 1 << 20
"""Maximum bytes of a frame; kubectl sends 32 KiB."""


class BrokenProtocolError(Exception):
    """The peer violates the protocol; the connection must be closed."""


@dataclass(frozen=True, slots=True)
class Event:
    """Bytes that arrived on a channel; `last` if it was closed."""

    channel: Channel
    data: bytes = b""
    last: bool = False


class Framing(Protocol):
    """The frames of one connection, without I/O."""

    @property
    def open_channels(self) -> frozenset[Channel]:
        """The channels that the peer has opened."""

    def receive_data(self, data: bytes) -> list[Event]:
        """Parse bytes from the network. Raises BrokenProtocolError."""

    def take_replies(self) -> bytes:
        """Return the protocol's automatic replies, and clear them."""

    def encode_frame(self, channel: Channel, data: bytes) -> bytes:
        """Return the bytes that carry `data` on a channel."""

    def closing_frames(self) -> bytes:
        """Return the bytes that end every channel and the connection."""
