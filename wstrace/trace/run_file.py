"""run.json: what `wstrace run` started and how it ended; one for each run of a folder."""

from __future__ import annotations

from codecs import BOM_UTF8
from collections.abc import Iterable, Sequence
from contextlib import suppress
from datetime import datetime
from pathlib import Path
from typing import Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.file_names import KEPT_RUN_FILES, RUN_FILE, command_file, kept_run_file
from wstrace.plain_files import TooLargeError, read_plain
from wstrace.trace.cleaning import cleaned
from wstrace.vllm.command_line import with_config

STOPPED: Final = (130, 143)
"""SIGINT and SIGTERM, by which a server is stopped in order. SIGKILL (137) lets nothing end."""
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
    def over(self) -> bool:
        """Whether it says how the command ended."""
        return self.ended is not None or self.exit_code is not None

    @property
    def failed(self) -> int | None:
        """The exit code of a command that did not end in order; None where it did."""
        return None if self.exit_code in (None, 0, *STOPPED) else self.exit_code

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
    """What the commands of `run` say `together`, and what cannot be read of their files."""
    commands, damage = find_commands(path, run)
    return together(commands), damage


def find_commands(
    path: Path, run: str | None = None, listed: Iterable[Path] | None = None
) -> tuple[list[RunFile], list[str]]:
    """The run.json of each command of `run` (None: the newest), and what cannot be read of
    those looked at.

    A folder may hold those of several runs, and a trace file may stand without its folder's.
    `listed`: those of the run that the folder has, where somebody has looked.
    """
    folder = path if path.is_dir() else path.parent
    commands: list[RunFile] = []
    damage: list[str] = []
    for file in (folder / RUN_FILE, folder / kept_run_file(run or "")):
        if not commands:
            _add_command(file, run, commands, damage)
    run = run or (commands[0].run if commands else "")
    others = folder.glob(command_file(run, "*")) if listed is None else listed
    for file in sorted(others):
        _add_command(file, run, commands, damage)
    return distinct(commands), damage


def _add_command(
    file: Path, run: str | None, commands: list[RunFile], damage: list[str]
) -> None:
    try:
        found = read_run(file)
    except WstraceError as error:
        damage.append(error.message)
        return
    if found is not None and run in (None, found.run):
        commands.append(found)


def distinct(commands: Iterable[RunFile]) -> list[RunFile]:
    """Each once: a run.json that lies there twice is one command's."""
    found: list[RunFile] = []
    for meta in commands:
        if meta not in found:
            found.append(meta)
    return found


def together(commands: Sequence[RunFile]) -> RunFile | None:
    """What the commands of one launch say together: the worst end (it must not hide behind
    another's), all that was lost, all that lived on and all sizes; None of none."""
    if not commands:
        return None
    sizes: dict[str, int] = {}
    for meta in commands:
        for name, size in meta.sizes.items():
            sizes[name] = max(size, sizes.get(name, 0))
    return msgspec.structs.replace(
        min(commands, key=_how_well),
        lost=list(dict.fromkeys(word for meta in commands for word in meta.lost)),
        living=list(dict.fromkeys(word for meta in commands for word in meta.living)),
        sizes=sizes,
    )


def _how_well(meta: RunFile) -> tuple[bool, bool]:
    """How a command ended, the worst first: a failure, no end, an end in order."""
    return meta.failed is None, meta.over
