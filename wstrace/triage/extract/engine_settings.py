"""The engine's version, flags and model numbers, as far as a text shows them.

One name may stand in several places (the config dump, the command, prose); the better
source wins, and of equal ones the last before the failure: servers restart with other
flags.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, replace
from enum import IntEnum
from typing import TYPE_CHECKING, Final

from wstrace.errors import WstraceError
from wstrace.triage.extract.stated import of_the_run, says_it_worked
from wstrace.units import whole_number
from wstrace.vllm.limits import rows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from wstrace.triage.ingest.squeeze import Squeezed

Value = int | str | bool | list[int]
KEPT: Final = 4000
_SHOWN: Final = 80
_ABOVE: Final = 1 << 40  # lines: more than any text has
MODEL: Final = "config.json:"


class Source(IntEnum):
    """Where a setting was read; larger is better. UNREAD: a flag and its value as they stand
    there, a number that vLLM would not read."""

    UNREAD = 0
    PROSE = 1
    COMMAND = 2
    ARGS = 3
    LOG = 4
    DUMP = 5
    RESOLVED = 6


@dataclass(frozen=True)
class Setting:
    """One name with its value, where it was read and in which line."""

    name: str
    value: Value
    source: Source
    line: int


class Settings:
    """All settings of a text; `resolve` says what held at a line."""

    def __init__(self) -> None:
        self._found: dict[tuple[str, str, Source], list[Setting]] = {}

    def add(self, setting: Setting) -> None:
        """Keep the first and the last place of each distinct value."""
        if len(self._found) >= KEPT:
            return
        key = setting.name, repr(setting.value), setting.source
        places = self._found.setdefault(key, [])
        places[1:] = [setting] if places else []
        if not places:
            places.append(setting)

    def before(self, other: Settings) -> None:
        """Take in what `other` says as if it stood above: all of this text comes after it."""
        for places in other._found.values():
            for setting in places:
                self.add(replace(setting, line=setting.line - _ABOVE))

    def resolve(self, line: int | None = None) -> dict[str, Value]:
        """Name to value at `line` (the end of the text where None), in order of names."""
        found = self._best(line)
        return {name: value for name, value in found.items() if not name.startswith(MODEL)}

    def rivals(self, line: int) -> dict[str, set[int]]:
        """The numbers on which the commands before `line` disagree, each with all its values.

        Which command the failure is of is unknown then. The log's own lines decide where they
        name the number, and commands after the failure only where none stands before it.
        """
        best = self._chosen(line)
        found: dict[str, set[int]] = {}
        for setting in self._read():
            held = best[setting.name]
            same = (setting.line <= line, setting.line > 0) == (
                held.line <= line,
                held.line > 0,
            )
            value = setting.value
            number = isinstance(value, int) and not isinstance(value, bool)
            if setting.source is held.source is Source.COMMAND and same and number:
                found.setdefault(setting.name, set()).add(int(value))  # type: ignore[arg-type]
        return {name: values for name, values in sorted(found.items()) if len(values) > 1}

    def resolved(self, name: str) -> set[Value]:
        """The values that vLLM itself says it chose for `name`, of every start in the text."""
        found = (item for places in self._found.values() for item in places)
        return {
            item.value
            for item in found
            if item.name == name
            and item.source is Source.RESOLVED
            and not isinstance(item.value, list)
        }

    def unread(self) -> dict[str, str]:
        """The flags with a value that is no number, by the name of the setting: those of which
        nothing else in the text gives the number."""
        known = self.resolve()
        found = (item for places in self._found.values() for item in places)
        unread = {i.name: str(i.value) for i in found if i.source is Source.UNREAD}
        return {name: said for name, said in sorted(unread.items()) if name not in known}

    def printed(self, name: str) -> list[str]:
        """The values of `name` of the engines whose config vLLM printed, in the order of their
        lines."""
        found = (item for places in self._found.values() for item in places)
        printed = [i for i in found if i.name == name and i.source is Source.DUMP]
        printed.sort(key=lambda item: item.line)
        return list(dict.fromkeys(str(item.value) for item in printed))

    def model(self) -> dict[str, Value]:
        """The numbers of a model's config.json that stands in the text, by its own keys."""
        found = self._best(None)
        return {
            name.removeprefix(MODEL): value
            for name, value in found.items()
            if name.startswith(MODEL)
        }

    def _read(self) -> Iterator[Setting]:
        found = (item for places in self._found.values() for item in places)
        return (item for item in found if item.source is not Source.UNREAD)

    def _best(self, line: int | None) -> dict[str, Value]:
        best = self._chosen(line)
        return {name: best[name].value for name in sorted(best)}

    def _chosen(self, line: int | None) -> dict[str, Setting]:
        best: dict[str, Setting] = {}
        for setting in self._read():
            other = best.get(setting.name)
            if other is None or _rank(setting, line) > _rank(other, line):
                best[setting.name] = setting
        return best


def _rank(setting: Setting, line: int | None) -> tuple[int, int, int]:
    earlier = line is None or setting.line <= line
    return int(setting.source), int(earlier), setting.line if earlier else -setting.line


_NAMES: Final = {said: row.name for row in rows() for said in (*row.spellings, row.env) if said}
_INTEGERS: Final = tuple(s for row in rows("size", "count") for s in row.spellings)
_BOOLEANS: Final = tuple(s for row in rows("switch") for s in row.spellings)
_WORDS: Final = tuple(s for row in rows("word") for s in row.spellings if s != "cudagraph_mode")
# vLLM 0.13.0 to 0.33.0: the flags with one dash; dcp and pcp from 0.14.0.
_SHORT: Final = {
    "tp": "tensor_parallel_size",
    "pp": "pipeline_parallel_size",
    "dp": "data_parallel_size",
    "dcp": "decode_context_parallel_size",
    "pcp": "prefill_context_parallel_size",
}
_ENVIRONMENT: Final = tuple(row.env for row in rows() if row.env)
_ANY: Final = "|".join((*_INTEGERS, *_BOOLEANS, *_WORDS))
# matches: "'max_model_len':32768"
_PAIR: Final = re.compile(
    rf"(?<![\w-])'?(?P<name>{_ANY})'?[=:](?:<\w+\.)?(?P<value>'[^']{{1,60}}'|-?[\w.]+)"
)
# matches: "'cudagraph_mode':'FULL_AND_PIECEWISE'"
_GRAPH_MODE: Final = re.compile(r"'cudagraph_mode':(?:<CUDAGraphMode\.(\w+?):|'(\w+)')")
# matches: "'cudagraph_capture_sizes':[1,2,4]"
_GRAPH_SIZES: Final = re.compile(r"'cudagraph_capture_sizes':\[([\d,]{1,4000})\]")
_FLAG_NAMES: Final = "|".join(
    name.replace("_", "[-_]") for name in (*_INTEGERS, *_BOOLEANS, *_WORDS)
)
# matches: '--max-num-seqs 8'
_FLAG: Final = re.compile(
    rf"--(?P<no>no-)?(?P<flag>{_FLAG_NAMES})(?![\w-])"
    r"(?:(?:=|[\s\"',\\]+(?:-\s+)?)[\"']?(?P<value>(?!-(?!\d))[^\s\"'`,\\]+))?"
)
# matches: 'vllm serve m -tp 2'
_SHORT_FLAG: Final = re.compile(
    r"(?<![\w-])-(?P<flag>tp|pp|dp|dcp|pcp)(?:(?=\d)|(?:=|[\s\"',\\]+)[\"']?)"
    r"(?P<value>(?!-(?!\d))[^\s\"'`,\\]+)"
)
# vLLM 0.32.0: human_readable_int_or_auto
_LEFT_TO_VLLM: Final = {"max_model_len": ("auto", "-1")}
# matches: '--max-num-seqs 8x'
_NUMBERED: Final = re.compile(r" -?\d")
# matches: '{"num_speculative_tokens": 3}'
_SPECULATIVE: Final = re.compile(r"[\"']num_speculative_tokens[\"']\s*:\s*(\d+)")
# matches: 'max_num_batched_tokens=8192'
_ASSIGNED: Final = re.compile(
    r"(?<![\w-])(?P<name>max[-_]model[-_]len|max[-_]num[-_]batched[-_]tokens"
    r"|max[-_]num[-_]seqs|(?:index_)?kpool|(?:tensor|data|pipeline)[-_]parallel[-_]size"
    rf"|{'|'.join(_ENVIRONMENT)})[\"'`]?(?:\s*[=:]\s*|\s+(?:is\s+|of\s+)?)[\"'`]?"
    r"(?P<value>\d[\d_,]*(?:\.\d+)?[kKmMgGtT]?)(?![\w.])"
)
# matches: 'we upgraded from '
_LEFT_BEHIND: Final = re.compile(r"(?i)\b(?:from|before|until|since|unlike|not on)\s+[`\"']?$")
# what a message tells to set
# matches: 'workspace overflow; set '
_ADVISED: Final = re.compile(
    r"(?i)(?:[.;:,(]|\b(?:please|or|can|should))\s*(?:set|try|increase|raise|use)\s+[\"'`]?$"
)
_ADVISED_REACH: Final = 30  # characters
_KEYS: Final = dict.fromkeys(key for row in rows() for key in row.keys if "." not in key)
# matches: '"num_key_value_heads": 8'
_MODEL_KEY: Final = re.compile(
    rf"[\"'](?P<key>{'|'.join(_KEYS)})[\"']\s*:\s*(?P<value>\d+)(?![.\d])"
)
# vLLM 0.13.0 to 0.33.0: config/model.py, platforms/interface.py (0.13.0: models/config.py),
# config/scheduler.py.
_LOG_LINES: Final = (
    # matches: 'Usingmaxmodellen32768'
    ("max_model_len", re.compile(r"Usingmaxmodellen(\d+)"), Source.LOG),
    # matches: 'Settingattentionblocksizeto2064tokens'
    ("block_size", re.compile(r"Settingattentionblocksizeto(\d+)tokens"), Source.RESOLVED),
    # matches: 'withmax_num_batched_tokens=8192'
    ("max_num_batched_tokens", re.compile(r"withmax_num_batched_tokens=(\d+)"), Source.LOG),
)
# A build without a tag at hand is 0.1.dev12345+gabcdef0, one without any version `dev`.
# `args` stands behind the API server's where blanks are out.
_NUMBERED_VERSION: Final = r"\d+\.\d+(?:(?!args)[\w.+])*"
_VERSION: Final = rf"(?P<v>{_NUMBERED_VERSION}|dev(?=args|\W|$))"
_THREE: Final = r"(?=\d+\.\d+\.(?:\d|dev))"  # numbers, as a release or such a build has
_RECENT: Final = r"(?=0\.(?:1[3-9]|[23]\d|1\.dev))"
# the API server's line, and its banner; `NCCL version 2.21.5` is no vLLM's
_OF_VLLM: Final = r"(?:\bvLLM API server |(?<![A-Za-z] )\b)"
# vLLM 0.13.0 to 0.33.0 has the first; the second up to 0.24.0, the third from 0.16.0 on.
_VERSIONS: Final = (
    # matches: 'LLMengine(v0.1.dev12345+gabcdef0)withconfig:'
    (Source.DUMP, re.compile(rf"LLMengine\(v{_VERSION}\)with")),
    # matches: 'vLLMAPIserverversion0.21.0args'
    (Source.LOG, re.compile(rf"vLLMAPIserverversion{_VERSION}(?:args|$)")),
    # matches: 'vLLMserverversion0.33.0,servingmodelm'
    (Source.LOG, re.compile(rf"vLLMserverversion{_VERSION},serving")),
)
_RAW_VERSIONS: Final = (
    # matches: 'INFO 05-05 14:00:00 [api_server.py:1] version 0.21.0'
    (Source.LOG, re.compile(rf"{_OF_VLLM}version (?:{_THREE}|(?=dev)){_VERSION}\s*$")),
    # matches: 'vLLM Version : 0.22.1'
    (Source.ARGS, re.compile(rf"vLLM Version\s*:\s*v?{_VERSION}", re.IGNORECASE)),
    # matches: 'pip install vllm==0.20.2'
    (Source.COMMAND, re.compile(rf"\bvllm\s?==\s?{_VERSION}")),
    # matches: 'vllm/vllm-openai:v0.23.0'
    (Source.COMMAND, re.compile(rf"vllm/vllm-[\w-]+:v{_VERSION}")),
    # matches: 'on vLLM 0.21.0 the server dies'
    (Source.PROSE, re.compile(rf"\bv?LLM[ -]v?(?=0\.){_THREE}{_VERSION}", re.IGNORECASE)),
    # matches: 'but on 0.23.0 it dies'
    (Source.PROSE, re.compile(rf"\b[Oo]n v?{_RECENT}{_THREE}{_VERSION}")),
)
# vLLM 0.13.0 to 0.33.0: the engine's config and the flags, each logged once at the start
# matches: 'withconfig:'
_DUMP_START: Final = re.compile(r"withconfig:|non-defaultargs:\{")
DUMP_REACH: Final = 16000
# vLLM 0.13.0 to 0.33.0: the model comes first in the engine's config, anywhere among the flags
# matches: "model='/srv/q3',"
_DUMPED_MODEL: Final = re.compile(r"model='([^']{1,1000})'")
# matches: "'model':'Qwen/Qwen3-8B'"
_GIVEN_MODEL: Final = re.compile(r"'model':'([^']{1,1000})'")


def settings_of(squeezed: Squeezed) -> Iterator[Setting]:
    """Every setting in the text of one stream."""
    yield from _dumps(squeezed)
    yield from _log_lines(squeezed)
    yield from _commands(squeezed)


def _dumps(squeezed: Squeezed) -> Iterator[Setting]:
    text = squeezed.text
    starts = list(_DUMP_START.finditer(text))
    ends = [match.start() for match in starts[1:]] + [len(text)]
    for start, end in zip(starts, ends, strict=False):
        source = Source.DUMP if start.group() == "withconfig:" else Source.ARGS
        line = squeezed.line(start.start()).number
        body = text[start.end() : min(end, start.end() + DUMP_REACH)]
        for name, value in _pairs(body):
            yield Setting(name, value, source, line)
        if model := _model(body, source):
            yield Setting("model", model, source, line)


def _model(body: str, source: Source) -> str:
    """The model's base name, as a trace has it; empty where the text does not show it.

    Flags in braces of their own (speculative_config) name a model that is not the engine's.
    """
    if source is Source.DUMP:
        found = _DUMPED_MODEL.match(body)
    else:
        given = _GIVEN_MODEL.finditer(body)
        found = next((one for one in given if _outermost(body[: one.start()])), None)
    return found[1].rstrip("/").rpartition("/")[2] if found else ""


def _outermost(before: str) -> bool:
    return before.count("{") == before.count("}")


def _pairs(body: str) -> Iterator[tuple[str, Value]]:
    seen: set[str] = set()
    for match in _PAIR.finditer(body):
        name = match["name"]
        value = _value(name, match["value"].strip("'"))
        if value is not None and name not in seen:
            seen.add(name)
            yield _NAMES.get(name, name), value
    mode = _GRAPH_MODE.search(body)
    if mode:
        yield "cudagraph_mode", mode[1] or mode[2]
    sizes = _GRAPH_SIZES.search(body)
    if sizes:
        yield "cudagraph_capture_sizes", [int(size) for size in sizes[1].split(",") if size]


def _value(name: str, text: str) -> Value | None:
    """The value in the type that `name` has; None for 'None', 'auto' and nonsense."""
    if name in _BOOLEANS:
        return {"true": True, "false": False, "1": True, "0": False}.get(text.lower())
    if name in _INTEGERS or name in _ENVIRONMENT:
        return whole_number(text)
    word = text.removeprefix("torch.")
    return None if word in ("None", "auto", "null") else word


def _log_lines(squeezed: Squeezed) -> Iterator[Setting]:
    text = squeezed.text
    for name, pattern, source in _LOG_LINES:
        for match in pattern.finditer(text):
            yield Setting(name, int(match[1]), source, squeezed.line(match.start()).number)
    for source, pattern in _VERSIONS:
        for match in pattern.finditer(text):
            line = squeezed.line(match.start()).number
            yield Setting("vllm_version", match["v"], source, line)


def _commands(squeezed: Squeezed) -> Iterator[Setting]:
    """Flags of a command line, which may go on over lines, and other raw forms.

    What a sentence says of another run (`works fine with ...`) is no setting of this one.
    """
    lines = of_the_run(squeezed.lines)
    for line in lines:
        text = line.text
        if "ersion" in text or "vllm" in text or "LLM" in text or "n 0." in text:
            for source, pattern in _RAW_VERSIONS:
                told = _version_of_the_run([*pattern.finditer(text)], text)
                if told:
                    yield Setting("vllm_version", told.rstrip(".+"), source, line.number)
        if "_" in text and ":" in text:
            for found in _MODEL_KEY.finditer(text):
                key, value = MODEL + found["key"], int(found["value"])
                yield Setting(key, value, Source.PROSE, line.number)
        if any(word in text for word in ("max", "parallel", "VLLM_", "kpool")):
            yield from _assignments(text, line.number)
    texts = [line.text for line in lines]
    marked = [i for i, text in enumerate(texts) if "--" in text or _SHORT_FLAG.search(text)]
    for first, last in _runs(marked):
        text = "\n".join(texts[first : last + 2])
        # a sentence has any word behind a flag's name
        yield from (
            setting
            for setting in _flags(text, lines[first].number)
            if setting.source is not Source.UNREAD or _NUMBERED.search(str(setting.value))
        )


def _assignments(text: str, line: int) -> Iterator[Setting]:
    for found in _ASSIGNED.finditer(text):
        start = found.start()
        if not _ADVISED.search(text[max(0, start - _ADVISED_REACH) : start]):
            yield from _assigned(found, line)


def _version_of_the_run(found: list[re.Match[str]], text: str) -> str:
    """The version of the failing run among a line's: not the one left, nor one that works."""
    if len(found) < 2:
        return found[0]["v"] if found else ""
    ends = [match.start() for match in found[1:]] + [len(text)]
    own = [
        match["v"]
        for match, end in zip(found, ends, strict=True)
        if not _LEFT_BEHIND.search(text[: match.start()])
        and not says_it_worked(text[match.end() : end])
    ]
    return own[0] if own else found[-1]["v"]


def command_settings(text: str) -> dict[str, Value]:
    """The settings of one command line of vLLM, or of a part of it: name -> value.

    Raises WstraceError (exit 2) for a flag whose value is missing or, where vLLM takes a
    number, is none.
    """
    settings = list(_flags(text, 1))
    for setting in settings:
        if setting.source is Source.UNREAD:
            said = str(setting.value)[:_SHOWN]
            raise WstraceError(
                f"The command's {said} is not read: no {'number' if ' ' in said else 'value'}.",
                "A number is 32768, 25.6k (25600) or 64K (65536); a variable needs its value.",
            )
    found: dict[str, Value] = {s.name: s.value for s in settings}
    squeezed = "".join(text.split()).replace('"', "'")
    sizes, mode = _GRAPH_SIZES.search(squeezed), _GRAPH_MODE.search(squeezed)
    if mode:
        found["cudagraph_mode"] = mode[1] or mode[2]
    if sizes:
        found["cudagraph_capture_sizes"] = [int(n) for n in sizes[1].split(",") if n]
    return found


def _runs(marked: Iterable[int]) -> Iterator[tuple[int, int]]:
    """Stretches of neighbouring marked lines, a line between two of them allowed."""
    start = last = None
    for index in marked:
        if start is None or last is None or index > last + 2:
            if start is not None and last is not None:
                yield start, last
            start = index
        last = index
    if start is not None and last is not None:
        yield start, last


def _flags(text: str, line: int) -> Iterator[Setting]:
    for match in _FLAG.finditer(text):
        name = match["flag"].replace("-", "_")
        if name in _BOOLEANS:
            yield Setting(_NAMES.get(name, name), not match["no"], Source.COMMAND, line)
        else:
            yield from _flag(f"--{match['flag']}", name, match["value"], line)
    for match in _SHORT_FLAG.finditer(text):
        yield from _flag(f"-{match['flag']}", _SHORT[match["flag"]], match["value"], line)
    for found in _SPECULATIVE.finditer(text):
        yield Setting("num_speculative_tokens", int(found[1]), Source.COMMAND, line)


def _flag(flag: str, name: str, given: str | None, line: int) -> Iterator[Setting]:
    """The setting of one flag: UNREAD where it lacks a value, or a number's value is none.
    No setting where the value leaves the choice to vLLM."""
    text = (given or "").rstrip(".;:)]}")
    value, setting = _value(name, text), _NAMES.get(name, name)
    left = _LEFT_TO_VLLM.get(setting, () if name in _INTEGERS else ("auto", "none", "null"))
    if text.lower() in left:
        return
    if value is None or value == "" or (isinstance(value, int) and value < 0):
        yield Setting(setting, f"{flag} {text}".strip(), Source.UNREAD, line)
    else:
        yield Setting(setting, value, Source.COMMAND, line)


def _assigned(match: re.Match[str], line: int) -> Iterator[Setting]:
    name = match["name"].replace("-", "_")
    name = "index_kpool" if name == "kpool" else name
    value = whole_number(match["value"].rstrip(","))
    if value:
        yield Setting(_NAMES.get(name, name), value, Source.PROSE, line)
