"""Expected errors of vkgateway, each with the exit code of the command line."""

from typing import ClassVar


class VkgatewayError(Exception):
    """An expected failure with a message of one sentence.

    The message names the object, its value and a short remedy. `hint` carries a longer remedy (a command to run, the
    accepted values). The command line prints both and exits with `exit_code`.
    """

    exit_code: ClassVar[int] = 1

    def __init__(self, message: str, *, hint: str = "") -> None:
        super().__init__(message)
        self.hint = hint

    @property
    def advice(self) -> str:
        """The message followed by the hint, for conditions and health checks."""
        return f"{self}. {self.hint}" if self.hint else str(self)


class InputError(VkgatewayError):
    """Invalid input of the user: a name, value, file or combination."""

    exit_code: ClassVar[int] = 2


class NotFoundError(VkgatewayError):
    """A named object does not exist."""

    exit_code: ClassVar[int] = 3


class ConflictError(VkgatewayError):
    """A request conflicts with the current state: a name is taken, a platform is busy."""

    exit_code: ClassVar[int] = 4


class UnavailableError(VkgatewayError):
    """A dependency is missing or unreachable: a program, a server, the network."""

    exit_code: ClassVar[int] = 5


class NotPublishedError(UnavailableError):
    """A server has no address in the caller's network. Only a change of its exposure can help."""
