"""The traces that `scripts/bench scale` reads, made from a sample's requests.

    python -m tools.bench.scale_traces FOLDER SHAPE RECORDS

`repeated`: one process that asks for 2,000 sizes over and over. `distinct`: processes that ask
for 20,000 sizes each, the most that a recorder writes of a phase, and for each of them once.
`short`: as repeated, without stack, layer and provenance. It is a program of its own, since a
child's peak memory is never told as less than its parent's.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final, Literal, get_args

import msgspec

from tools import ROOT

Shape = Literal["repeated", "distinct", "short"]
SAMPLE: Final = ROOT / "sample_traces" / "h100-vllm-0.21.0-turboquant-grow"
SIZES: Final = 2_000
OF_A_PROCESS: Final = 20_000
LONG: Final = ("stack", "layer", "provenance", "specs")
_NS, _STEP = 123_456_789_012_345, 987_654_321_098_765  # where the two numbers stand
Pieces = tuple[bytes, bytes, bytes]
"""A request's line before its time, up to its step's number, and behind it."""


def write_trace(folder: Path, shape: Shape, wanted: int) -> list[Path]:
    """The trace: `wanted` requests in serving, before the last records of the sample."""
    (source,) = SAMPLE.glob("*.wst.jsonl")
    (folder / "run.json").write_text((SAMPLE / "run.json").read_text())
    lines = source.read_bytes().splitlines(keepends=True)
    model, last = _model(lines, shape)
    sizes = min(wanted, OF_A_PROCESS if shape == "distinct" else SIZES)
    pieces = [_pieces(model, number, shape) for number in range(sizes)]
    each = sizes if shape == "distinct" else wanted
    written = []
    for process in range(-(-wanted // each)):
        count = min(each, wanted - process * each)
        written.append(folder / source.name.replace(".host.", f".host{process}."))
        with written[-1].open("wb", buffering=1 << 20) as file:
            file.writelines(_placed(lines[:2], process))
            file.writelines(lines[2 : last + 1])
            file.writelines(islice(_requests(pieces, model["ns"]), count))
            file.writelines(lines[last + 1 :])
    return written


def _model(lines: list[bytes], shape: Shape) -> tuple[dict[str, Any], int]:
    """A request in serving to make others of, and the number of the sample's last request."""
    kept = [json.loads(line) for line in lines]
    model = next(r for r in kept if r["t"] == "request" and r["phase"] == "serving")
    if shape == "short":
        model = {name: value for name, value in model.items() if name not in LONG}
    return model, max(n for n, r in enumerate(kept) if r["t"] == "request")


def _placed(lines: list[bytes], process: int) -> Iterator[bytes]:
    """The header and what follows it, as another data-parallel rank's process wrote them."""
    for line in lines:
        record = json.loads(line)
        if record["t"] == "header":
            record["pid"] += process
        elif record["t"] == "worker":
            record["ranks"]["dp"] = process
        yield msgspec.json.encode(record) + b"\n"


def _requests(pieces: list[Pieces], ns: int) -> Iterator[bytes]:
    number = 0
    while True:
        for first, middle, last in pieces:
            yield b"%b%d%b%d%b" % (first, ns + number, middle, 100 + number, last)
            number += 1


def _pieces(model: dict[str, Any], number: int, shape: Shape) -> Pieces:
    made = _another(model, number, shape)
    made["ns"] = _NS
    made["step"]["index"] = _STEP
    first, rest = (msgspec.json.encode(made) + b"\n").split(b"%d" % _NS)
    middle, last = rest.split(b"%d" % _STEP)
    return first, middle, last


def _another(model: dict[str, Any], number: int, shape: Shape) -> dict[str, Any]:
    """The same request in another step, of another length; sizes follow the real rule."""
    computed = 1 + number if shape == "distinct" else 16 * (1 + number)
    allocated = -(-computed // 16) * 16
    made = {**model, "bytes": 2 * 4 * 128 * 2 * allocated}
    made["step"] = dict(model["step"])
    made["step"]["requests"] = [dict(r, computed=computed) for r in model["step"]["requests"]]
    if "specs" in model:
        made["specs"] = [
            dict(s, bytes=made["bytes"] // 2, shape=[1, 4, allocated, 128])
            for s in model["specs"]
        ]
    if "provenance" in model:
        leaves = [
            dict(leaf, value=computed) if leaf.get("role") == "num_computed_tokens" else leaf
            for leaf in model["provenance"]["leaves"]
        ]
        made["provenance"] = dict(model["provenance"], leaves=leaves)
    return made


if __name__ == "__main__":
    into, named, count = sys.argv[1:]
    chosen: Shape = next(shape for shape in get_args(Shape) if shape == named)
    write_trace(Path(into), chosen, int(count))
