"""Saved simulations, from which an interrupted `vkgateway simulate` continues."""

from __future__ import annotations

from pathlib import Path

import msgspec

from vkgateway.api.errors import InputError
from vkgateway_platform.simulate.state import SimulationState


class _Saved(msgspec.Struct, kw_only=True):
    fingerprint: str
    states: dict[str, SimulationState] = {}
    """States by scheduler: the finished ones and the current one."""


class SavedStates:
    """States of one scenario's schedulers."""

    def __init__(self, file: Path, fingerprint: str) -> None:
        self._file = file
        self._saved = _Saved(fingerprint=fingerprint)

    def load(self) -> None:
        """Load the file.

        Raises:
            InputError: the file is unreadable or belongs to another scenario.
        """
        try:
            found = msgspec.json.decode(self._file.read_bytes(), type=_Saved)
        except OSError as error:
            raise InputError(
                f"--save: cannot read {self._file}: {error.strerror}", hint="Omit --resume to start again."
            ) from error
        except msgspec.DecodeError as error:
            raise InputError(
                f"--save {self._file} is not a saved simulation: {error}", hint="Omit --resume to start again."
            ) from error
        if found.fingerprint != self._saved.fingerprint:
            raise InputError(
                f"--save {self._file} belongs to another cluster, trace or settings",
                hint="Use the same options as before, or omit --resume.",
            )
        self._saved = found

    def state_of(self, scheduler: str) -> SimulationState | None:
        """Return the saved state of a scheduler; None if there is none."""
        return self._saved.states.get(scheduler)

    def save(self, scheduler: str, state: SimulationState) -> None:
        """Write the file atomically.

        Raises:
            InputError: the file is not writable.
        """
        self._saved.states[scheduler] = state
        temporary = self._file.with_name(self._file.name + ".new")
        try:
            temporary.write_bytes(msgspec.json.encode(self._saved))
            temporary.replace(self._file)
        except OSError as error:
            raise InputError(
                f"--save: cannot write {self._file}: {error.strerror}", hint="Choose a writable path."
            ) from error
