"""Write the tables of records in docs/trace-format.md from wstrace/trace/records.py."""

from __future__ import annotations

import re
from typing import Any, Final, get_args

import msgspec

from tools import ROOT
from tools.docs.page import Generator, Pages, between
from wstrace.trace import records
from wstrace.trace.records import AnyRecord

PAGE = ROOT / "docs" / "trace-format.md"
BEGIN, END = "<!-- made by scripts/make-docs trace-format -->", "<!-- end -->"
MOST_WORDS: Final = 4  # the twelve phases would fill ten rows
PARTS = ("Slot", "Ranks", "Step", "ScheduledRequest", "Spec", "Provenance", "Leaf", "Count")


def tables() -> str:
    kinds = {kind.__struct_config__.tag: kind for kind in AnyRecord.__args__}
    lines: list[str] = []
    for tag, kind in kinds.items():
        lines += section(tag, kind)
    lines += ["## Parts", ""]
    for name in PARTS:
        kind = getattr(records, name)
        lines += section(name, kind, listed=kind.__struct_config__.array_like)
    return "\n".join(lines)


def section(title: str, kind: Any, listed: bool = False) -> list[str]:
    text = " ".join((kind.__doc__ or "").split())
    fields = [f for f in msgspec.structs.fields(kind) if f.name != "ns"]
    head = [f"### {title}", "", escaped(text) + (" Written as a list." if listed else ""), ""]
    rows = [f"| `{f.encode_name}` | {escaped(source_type(kind, f.name))} |" for f in fields]
    return [*head, "| field | type |", "| --- | --- |", *rows, ""]


def source_type(kind: Any, name: str) -> str:
    """The annotation as it stands in the source, a short set of words spelt out."""
    owner = next(c for c in kind.__mro__ if name in vars(c).get("__annotations__", {}))
    text = str(owner.__annotations__[name])
    words = get_args(getattr(records, text, None))
    if 0 < len(words) <= MOST_WORDS and all(isinstance(word, str) for word in words):
        return f"one of {list(words)}"
    # matches: "Int | None"
    plain = re.sub(r"\bInt\b", "int", text)  # of 64 bits, as the page says
    return plain.replace('"', "").replace("Literal[", "one of [")


def escaped(text: str) -> str:
    return text.replace("|", "\\|").replace("<", "&lt;")


def pages() -> Pages:
    yield PAGE, between(PAGE.read_text(), BEGIN, END, f"\n{tables()}")


GENERATOR: Final = Generator("trace-format", pages)
