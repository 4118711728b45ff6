"""fix.json: how far a fix came, so that the same command goes on where it was cut."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.files import write_output
from wstrace.plain_files import read_plain

STATE_FILE: Final = "fix.json"
VERSION: Final = 1
_LARGEST: Final = 1 << 20


class Served(msgspec.Struct, frozen=True, omit_defaults=True):
    """A server that was started, asked and ended: its run, and how the asking went."""

    run: str
    told: str
    answered: bool = False


class FixState(msgspec.Struct, frozen=True, omit_defaults=True):
    """What was done so far. `command` is redacted; `versions` are those it was done with."""

    version: int
    command: list[str]
    versions: dict[str, str]
    grown: Served | None = None
    verified: Served | None = None
    finished: bool = False


def read_state(folder: Path, command: list[str], versions: dict[str, str]) -> FixState:
    """The state to go on from: a new one where there is none, where the last fix was finished,
    and where it was done with other versions.

    Raises WstraceError for one that cannot be read, and for that of another command.
    """
    fresh = FixState(VERSION, command, versions)
    path = folder / STATE_FILE
    try:
        found = msgspec.json.decode(read_plain(path, _LARGEST), type=FixState)
    except FileNotFoundError:
        return fresh
    except (OSError, ValueError) as error:
        raise WstraceError(
            f"{path} cannot be read: {error}.", "Remove it to begin anew, or name another -o."
        ) from error
    if found.command != command:
        raise WstraceError(
            f"{folder} holds the fix of another command.", "Name another folder with -o."
        )
    same = found.version == VERSION and found.versions == versions
    return found if same and not found.finished else fresh


def write_state(folder: Path, state: FixState) -> None:
    """Whole or not at all. Raises WstraceError where it cannot be written."""
    text = msgspec.json.format(msgspec.json.encode(state), indent=2)
    write_output(text + b"\n", folder / STATE_FILE)
