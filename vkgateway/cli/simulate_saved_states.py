"""Saved simulations: a file from which an interrupted `vkgateway simulate` continues."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vkgateway.model.errors import InputError
from vkgateway.simulate.state import SimulationState


class _Saved(msgspec.Struct, kw_only=True):
    fingerprint: str
    states: dict[str, SimulationState] = {}
    """By scheduler; those that have finished, and the one that runs."""


class SavedStates:
    """The states of the schedulers of one scenario."""

    def __init__(self, file: Path, fingerprint: str) -> None:
        self._file = file
        self._saved = _Saved(fingerprint=fingerprint)

    def load(self) -> None:
        """Read the file.

        Raises:
            InputError: it cannot be read, or is of another scenario.
        """
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Saved)
        except OSError as error:
            raise InputError(
                f"--save {self._file} cannot be read: {error.strerror}", hint="Leave out --resume."
            ) from error
        except msgspec.DecodeError as error:
            raise InputError(f"--save {self._file} is not a saved simulation: {error}") from error
        if found.fingerprint != self._saved.fingerprint:
            raise InputError(
                f"--save {self._file} is of another cluster, trace or settings",
                hint="Give the same options as before, or leave out --resume.",
            )
        self._saved = found

    def state_of(self, scheduler: str) -> SimulationState | None:
        """Return what was saved of a scheduler; None: nothing."""
        return self._saved.states.get(scheduler)

    def save(self, scheduler: str, state: SimulationState) -> None:
        """Write the file, in one step: an interruption leaves the former one.

        Raises:
            InputError: it cannot be written.
        """
        self._saved.states[scheduler] = state
        aside = self._file.with_name(self._file.name + ".new")
        try:
            aside.write_bytes(msgspec.json.encode(self._saved))
            aside.replace(self._file)
        except OSError as error:
            raise InputError(f"--save {self._file} cannot be written: {error.strerror}") from error
