"""Traces in which requests come again, a little later and in another step."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

import msgspec

LATER_NS: Final = 1_000


def repeated(lines: Iterable[bytes], times: int) -> list[bytes]:
    """Each request `times` times: those between two other records, and then all of them again,
    each time later and in a later step."""
    made: list[bytes] = []
    requests: list[bytes] = []
    for line in [*lines, b""]:
        if line.startswith(b'{"t":"request"'):
            requests.append(line)
            continue
        made += [_later(line, number) for number in range(times) for line in requests]
        requests = []
        made.append(line)
    return made


def _later(line: bytes, number: int) -> bytes:
    record = msgspec.json.decode(line)
    record["ns"] += number * LATER_NS
    if "step" in record:
        record["step"]["index"] += number
    return msgspec.json.encode(record) + b"\n"
