"""What the files of a trace folder are called. A run's id may say anything: it comes from
WSTRACE_RUN or from a file, and no file of a trace stands outside its folder."""

from __future__ import annotations

from typing import Final

SUFFIX: Final = ".wst.jsonl"
RUN_FILE: Final = "run.json"
_LONGEST: Final = 100


def part_of_name(text: str) -> str:
    """`text` as a part of a file's name: short, and without anything that ends a folder."""
    plain = (c if c.isascii() and (c.isalnum() or c in "-_.") else "-" for c in text)
    return "".join(plain)[:_LONGEST]


def kept_run_file(run: str) -> str:
    """What an earlier run's run.json is called."""
    return f"run.{part_of_name(run)}.json"
