"""Traces in which requests come again: the samples' own, in later steps."""

from __future__ import annotations

from pathlib import Path

import msgspec

TIMES = 3
LATER = 1_000


def repeated(source: Path, target: Path, times: int = TIMES) -> Path:
    """The trace with each request `times` times, a little later and in another step each time:
    once at its place, then all of what lies between two other records again."""
    target.mkdir()
    for file in sorted(source.iterdir()):
        if file.name.endswith(".wst.jsonl"):
            lines = file.read_bytes().splitlines(keepends=True)
            (target / file.name).write_bytes(b"".join(_again(lines, times)))
        elif file.name == "run.json":
            meta = msgspec.json.decode(file.read_bytes())
            meta.pop("sizes", None)  # as of a recorder that did not write them
            (target / file.name).write_bytes(msgspec.json.encode(meta))
    return target


def _again(lines: list[bytes], times: int) -> list[bytes]:
    made: list[bytes] = []
    asks: list[bytes] = []
    for line in [*lines, b""]:
        if line.startswith(b'{"t":"request"'):
            asks.append(line)
            continue
        made += [_later(ask, number) for number in range(times) for ask in asks]
        asks = []
        made.append(line)
    return made


def _later(line: bytes, number: int) -> bytes:
    record = msgspec.json.decode(line)
    record["ns"] += number * LATER
    if "step" in record:
        record["step"]["index"] += number
    return msgspec.json.encode(record) + b"\n"
