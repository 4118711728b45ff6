"""What files are called: those of a trace, and those that are named after what they are of.

A run's id, a model's name and an address may say anything: they come from WSTRACE_RUN or from a
file, and no file stands outside its folder for it.
"""

from __future__ import annotations

import re
from hashlib import blake2b
from typing import Final, Literal

SUFFIX: Final = ".wst.jsonl"
RUN_FILE: Final = "run.json"
KEPT_RUN_FILES: Final = "run.*.json"
"""Those of earlier runs of a folder, as a glob."""
TraceFileKind = Literal["records", "end"]
"""A process's records; how a run ended."""
PACKED: Final = (".gz", ".bz2", ".xz", ".zst")
"""What the usual packers add to a name; their files are not unpacked here."""
_LONGEST: Final = 100
_LONGEST_HOST: Final = 40
# run.json, that of an earlier run of the folder, and that of another command of a launch
# matches: "run.20261128T014238Z-4bd7e681.json"
_END: Final = re.compile(r"run(?:\.(?P<run>.+?)(?:\+[0-9a-f]+)?)?\.json")
# matches: "4bd7e681.host.30091.1795830203879311338.2fa811b7.wst.jsonl"
_OF_PROCESS: Final = re.compile(r"(?P<run>.+)\.[^.]+\.\d+\.\d+\.[0-9a-f]+\.wst\.jsonl")


def part_of_name(text: str, longest: int = _LONGEST) -> str:
    """`text` as a part of a file's name: short, and without anything that ends a folder."""
    plain = (c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
    return "".join(plain)[:longest]


def name_of_its_own(text: str, instead: str, longest: int = 80) -> str:
    """`text` as the name of a file or folder, with a digest: other texts have other names.

    `instead` stands where nothing of `text` can be in a name.
    """
    name = part_of_name(text, longest).strip(".") or instead
    digest = blake2b(text.encode(errors="surrogateescape"), digest_size=4)
    return f"{name}-{digest.hexdigest()}"


def process_file(run: str, host: str, pid: int, start_ns: int, mark: str) -> str:
    """`RUN.HOST.pid.start_ns.mark.wst.jsonl`; `mark` is hexadecimal."""
    host = part_of_name(host).replace(".", "-")[:_LONGEST_HOST]
    return f"{part_of_name(run)}.{host}.{pid}.{start_ns}.{mark}{SUFFIX}"


def kept_run_file(run: str) -> str:
    """What an earlier run's run.json is called."""
    return f"run.{part_of_name(run)}.json"


def command_file(run: str, mark: str) -> str:
    """What the run.json of another command of a launch is called where one is there: `+` is in
    no `kept_run_file`, and a run's id has none there."""
    return f"run.{part_of_name(run)}+{mark}.json"


def is_packed(name: str) -> bool:
    """Whether it is called like a process's records that someone has compressed."""
    return name.endswith(tuple(SUFFIX + packed for packed in PACKED))


def trace_file_kind(name: str) -> TraceFileKind | None:
    """What a file of this name is in a trace; None for one that belongs to none."""
    if name.endswith(SUFFIX) or is_packed(name):
        return "records"
    return "end" if _END.fullmatch(name) else None


def named_run(name: str) -> str:
    """The run that a file of a trace says in its name; empty where it says none."""
    if is_packed(name):
        name = name.rpartition(".")[0]
    found = (_OF_PROCESS if name.endswith(SUFFIX) else _END).fullmatch(name)
    return (found["run"] or "") if found else ""
