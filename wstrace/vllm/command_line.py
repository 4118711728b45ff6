"""A server's command line, as vLLM takes it: its words, its options, the engines it starts.

Words are a command's, with those of its `--config FILE` and of a shell's `-c` text. vLLM 0.13.0
to 0.33.0: FlexibleArgumentParser, EngineArgs.create_engine_config.
"""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from wstrace.plain_files import read_plain

SHELLS: Final = ("sh", "bash", "dash", "ash", "zsh", "ksh")
# a shell's options that end in c: the next word is its program
# matches: "-lc"
_PROGRAM: Final = re.compile(r"^-[a-z]*c$")
# `vllm serve`, `python -m vllm.entrypoints.openai.api_server`, or that module as a file
# matches: "/opt/vllm/entrypoints/openai/api_server.py"
_API_SERVER: Final = re.compile(r"(^|[/.m])vllm[./]entrypoints[./]openai[./]api_server(\.py)?$")
_LARGEST: Final = 1 << 20


def option(command: Sequence[str], *names: str) -> str | None:
    """The value of `--name VALUE`, `--name=VALUE` or `-n VALUE`, the last one given.

    vLLM takes `_` for `-` in a long name.
    """
    found = None
    for word, after in zip(command, (*command[1:], ""), strict=False):
        given, equals, value = word.partition("=")
        if _name(given) in names:
            found = value if equals else after
        elif short := next((n for n in names if _joined(word, n)), ""):
            found = word[len(short) :]
    return found


def switch(command: Sequence[str], *names: str) -> bool:
    """Whether an option without a value is on: `--name`, unless `--no-name` comes later."""
    off = {f"--no-{name.removeprefix('--')}" for name in names if name.startswith("--")}
    given = [_name(word) for word in command]
    told = [name in names for name in given if name in off or name in names]
    return bool(told) and told[-1]


def _name(word: str) -> str:
    return word.replace("_", "-") if word.startswith("--") else word


def _joined(word: str, name: str) -> bool:
    """Whether a number follows a short name without a space, as argparse takes it: `-dp2`."""
    return not name.startswith("--") and word.startswith(name) and word[len(name) :].isdecimal()


def words_of(command: Sequence[str]) -> list[str]:
    """The command's words; a shell's program (`bash -c "vllm serve m"`) as its own words."""
    return list(_unfolded(command))


def _unfolded(command: Sequence[str]) -> Iterator[str]:
    shell = program = False
    for word in command:
        yield from _split(word) if program else (word,)
        program = shell and _PROGRAM.match(word) is not None
        shell = word.rpartition("/")[2] in SHELLS or (shell and word.startswith("-"))


def _split(program: str) -> list[str]:
    try:
        return shlex.split(program)
    except ValueError:
        return program.split()


def config_words(command: Sequence[str]) -> list[str]:
    """The options of the command's `--config FILE`, as words; none where there is no file that
    can be read. Only `--config FILE` in two words is one: vLLM reads no other."""
    words = words_of(command)
    at = words.index("--config") + 1 if "--config" in words else len(words)
    path = Path(words[at]) if at < len(words) else Path()
    if path.suffix not in (".yaml", ".yml") or not path.is_file():
        return []
    return list(_from_yaml(path))


def _from_yaml(path: Path) -> Iterator[str]:
    import yaml

    try:
        found = yaml.safe_load(read_plain(path, _LARGEST))
    except (OSError, yaml.YAMLError, RecursionError, ValueError):
        return
    for key, value in found.items() if isinstance(found, dict) else ():
        if value is False:
            yield f"--no-{key}"
        elif value is True:
            yield f"--{key}"
        elif isinstance(value, list):
            yield from (f"--{key}", *map(str, value)) if value else ()
        else:
            yield f"--{key}"
            yield json.dumps(value, default=str) if isinstance(value, dict) else str(value)


def with_config(command: Sequence[str], config: Sequence[str]) -> list[str]:
    """The words in the order in which they count: those of the command come last."""
    return [*config, *words_of(command)]


def serves(words: Sequence[str]) -> bool:
    """Whether the command starts vLLM's HTTP server; `vllm bench serve` asks one."""
    pairs = zip(("", *words), words, strict=False)
    return any((w == "serve" and b != "bench") or _API_SERVER.search(w) for b, w in pairs)


@dataclass(frozen=True)
class Engines:
    """Data-parallel engines: those that the command starts, and those of all its nodes."""

    here: int
    everywhere: int


def engines(words: Sequence[str]) -> Engines:
    """How many data-parallel engines these words promise.

    One of them with a rank of its own (external load balancing); where each node has a command,
    those of this node. Ray starts all of them, wherever they are.
    """
    size = _count(words, 1, "--data-parallel-size", "-dp")
    external = switch(words, "--data-parallel-external-lb", "-dpe")
    if external or option(words, "--data-parallel-rank", "-dpn") is not None:
        return Engines(1, size)
    if option(words, "--data-parallel-backend", "-dpb") == "ray":
        return Engines(size, size)
    nodes = _count(words, 1, "--nnodes", "-n")
    local = _count(words, max(size // nodes, 1), "--data-parallel-size-local", "-dpl")
    return Engines(min(local, size), size)


def engines_of(commands: Iterable[Sequence[str]]) -> Engines:
    """How many data-parallel engines the commands of one launch promise together."""
    promised = [engines(words) for words in commands] or [engines([])]
    everywhere = max(one.everywhere for one in promised)
    return Engines(min(sum(one.here for one in promised), everywhere), everywhere)


def _count(words: Sequence[str], default: int, *names: str) -> int:
    told = option(words, *names) or ""
    known = told.isdecimal() and len(told) < 6
    return max(int(told), 1) if known else default
