"""The samples' traces with their requests repeated."""

from __future__ import annotations

from pathlib import Path

import msgspec

from tools.fuzz.repeated import repeated

TIMES = 3


def repeated_trace(source: Path, target: Path, times: int = TIMES) -> Path:
    """The trace with each request `times` times, in a new folder."""
    target.mkdir()
    for file in sorted(source.iterdir()):
        if file.name.endswith(".wst.jsonl"):
            lines = file.read_bytes().splitlines(keepends=True)
            (target / file.name).write_bytes(b"".join(repeated(lines, times)))
        elif file.name == "run.json":
            meta = msgspec.json.decode(file.read_bytes())
            meta.pop("sizes", None)  # as of a recorder that did not write them
            (target / file.name).write_bytes(msgspec.json.encode(meta))
    return target
