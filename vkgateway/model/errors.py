"""The tree of errors that vkgateway raises on purpose, with the exit code each one means."""

from typing import ClassVar


class VkgatewayError(Exception):
    """Something failed that can be told in one sentence.

    The message names the thing, its value and, where that is short, the way out; `hint` carries a longer one
    (a command to run, values that are accepted). The command line prints both and exits with `exit_code`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint


class InputError(VkgatewayError):
    """What the user gave cannot be used: a bad name, value, file or combination."""

    exit_code: ClassVar[int] = 2


class NotFoundError(VkgatewayError):
    """What was named does not exist."""

    exit_code: ClassVar[int] = 3


class ConflictError(VkgatewayError):
    """What was asked for collides with what is there: a name that is taken, a platform that is busy."""

    exit_code: ClassVar[int] = 4


class UnavailableError(VkgatewayError):
    """Something needed is missing or cannot be reached now: a program, a server, the network."""

    exit_code: ClassVar[int] = 5
