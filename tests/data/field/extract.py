"""`python extract.py RAW... > EXTRACT`: what the tests need of a prototype's raw event file.

Keeps phases, shapes, scheduler sizes, growths and locks in order; drops time stamps,
addresses and all but the innermost stack frame.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

KEPT = (
    "ev",
    "what",
    "phase",
    "step",
    "shapes",
    "req",
    "cur",
    "locked",
    "sched",
    "sizes",
    "args",
)


def extract(raw: str) -> str:
    """The extract of one raw file, a JSON object a line."""
    return "".join(json.dumps(_kept(json.loads(line))) + "\n" for line in raw.splitlines())


def _kept(event: dict[str, Any]) -> dict[str, Any]:
    kept = {k: event[k] for k in KEPT if event.get(k) is not None}
    if event.get("stack"):
        kept["caller"] = event["stack"][0]
    return kept


if __name__ == "__main__":
    for name in sys.argv[1:]:
        sys.stdout.write(extract(Path(name).read_text()))
