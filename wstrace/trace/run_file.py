"""run.json: what `wstrace run` started and how it ended; one for each run of a folder."""

from __future__ import annotations

from codecs import BOM_UTF8
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.file_names import KEPT_RUN_FILES, RUN_FILE, kept_run_file
from wstrace.plain_files import TooLargeError, read_plain
from wstrace.trace.cleaning import cleaned
from wstrace.vllm.command_line import with_config

_LARGEST: Final = 1 << 20


class RunFile(msgspec.Struct, omit_defaults=True):
    """run.json: what `wstrace run` started, and how it ended.

    `config` has the options of the command's own `--config FILE`, as words. `living` names
    processes of the command that still lived when it had ended. `lost`: what the trace files
    said then of records that they lack, so that a file that goes does not take it along.
    `sizes`: the bytes that each of them had then.
    """

    run: str
    command: list[str]
    started: str
    wstrace: str
    ended: str | None = None
    exit_code: int | None = None
    on_growth: str = "raise"
    reserve: str | None = None
    versions: dict[str, str] = {}
    living: list[str] = []
    lost: list[str] = []
    config: list[str] = []
    sizes: dict[str, int] = {}

    @property
    def words(self) -> list[str]:
        """The command's words and those of its config file, as vLLM takes them."""
        return with_config(self.command, self.config)

    @property
    def started_ns(self) -> int:
        """When it started, ns since the epoch; 0 where the text is no time."""
        try:
            return int(datetime.fromisoformat(self.started).timestamp()) * 1_000_000_000
        except (ValueError, OverflowError):
            return 0


def read_run(path: Path) -> RunFile | None:
    """A run.json; None where there is none. Raises WstraceError where it cannot be read."""
    try:
        found: RunFile = cleaned(msgspec.json.decode(_text(path), type=RunFile))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise _unreadable(path, error.strerror or str(error)) from error
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise _unreadable(path, str(error)) from error
    return found


def _text(path: Path) -> bytes:
    try:
        return read_plain(path, _LARGEST).removeprefix(BOM_UTF8)
    except TooLargeError as error:
        raise _unreadable(path, str(error)) from error


def _unreadable(path: Path, why: str) -> WstraceError:
    return WstraceError(
        f"{path.name} cannot be read ({why}): how its run ended, and which run is the newest, "
        "is unknown",
        "Restore the file from where the trace was made, or record again.",
    )


def run_files(folder: Path) -> list[RunFile]:
    """Those of all the runs of a folder that can be read."""
    found = []
    for file in (folder / RUN_FILE, *sorted(folder.glob(KEPT_RUN_FILES))):
        with suppress(WstraceError):
            found.append(read_run(file))
    return [meta for meta in found if meta is not None]


def find_run(path: Path, run: str | None = None) -> tuple[RunFile | None, list[str]]:
    """The run.json of `run` (None: the newest), and what cannot be read of those looked at.

    A folder may hold those of several runs, and a trace file may stand without its folder's.
    """
    folder = path if path.is_dir() else path.parent
    damage = []
    for file in (folder / RUN_FILE, folder / kept_run_file(run or "")):
        try:
            found = read_run(file)
        except WstraceError as error:
            damage.append(error.message)
            continue
        if found is not None and run in (None, found.run):
            return found, damage
    return None, damage
