"""Known findings that a team has accepted: by place and bytes, with a reason and an end.

One JSON object a line, sorted, so that two branches that accept different findings merge.
Nothing in it depends on the machine: see `place`.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from pathlib import Path
from typing import Final

import msgspec

from wstrace.errors import WstraceError
from wstrace.gate.place import Place
from wstrace.plain_files import read_plain

HEAD: Final = (
    "# wstrace baseline, format 1: findings that are accepted, one a line (docs/gate.md)\n"
)
MAX_SIZE: Final = 4 << 20


class Entry(msgspec.Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """One accepted finding. `bytes` is the largest size accepted; null: any size."""

    code: str
    site: str = ""
    slot: str = ""
    bytes: int | None = None
    reason: str = ""
    expires: date | None = None

    @property
    def place(self) -> Place:
        """What the entry accepts."""
        return Place(self.code, self.site, self.slot)

    def expired(self, today: date) -> bool:
        """True from the day after `expires`."""
        return self.expires is not None and today > self.expires


Baseline = dict[Place, Entry]


def read_baseline(path: Path) -> Baseline:
    """The entries of a file. Raises WstraceError (exit 2) with the line that is wrong."""
    entries: Baseline = {}
    for number, line in enumerate(_text(path).splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        entry = _entry(path, number, line)
        if entry.place in entries:
            raise WstraceError(
                f"{path}, line {number}: {entry.code} of {entry.site or 'the run'} twice.",
                "Keep one of the two lines.",
            )
        entries[entry.place] = entry
    return entries


def _text(path: Path) -> str:
    try:
        return read_plain(path, MAX_SIZE).decode("utf-8-sig")
    except (OSError, ValueError) as error:
        undecodable = isinstance(error, UnicodeDecodeError)
        why = "not text" if undecodable else getattr(error, "strerror", None) or error
        raise WstraceError(
            f"Cannot read the baseline {path}: {why}.",
            "Write one first: wstrace gate TRACE --write-baseline FILE.",
        ) from error


def _entry(path: Path, number: int, line: str) -> Entry:
    try:
        return msgspec.json.decode(line, type=Entry)
    except msgspec.MsgspecError as error:
        raise WstraceError(
            f"{path}, line {number}: not a baseline entry ({error}).",
            'A line is {"code":"WS102","site":"FILE:FUNCTION","slot":"main","bytes":N}.',
        ) from error


def format_baseline(entries: Iterable[Entry]) -> str:
    """The file's text: a comment, then the entries sorted by code, site and slot."""
    lines = [
        msgspec.json.encode(_shown(e)).decode() for e in sorted(entries, key=lambda e: e.place)
    ]
    return HEAD + "".join(f"{line}\n" for line in lines)


def _shown(entry: Entry) -> dict[str, object]:
    shown: dict[str, object] = {"code": entry.code, "site": entry.site, "slot": entry.slot}
    shown["bytes"] = entry.bytes
    shown["reason"] = entry.reason
    if entry.expires is not None:
        shown["expires"] = entry.expires
    return shown


def entry_for(
    place: Place, size: int | None, old: Entry | None, reason: str, expires: date | None
) -> Entry:
    """The entry that accepts a finding; an older entry's reason and end stay unless given."""
    return Entry(
        code=place.code,
        site=place.site,
        slot=place.slot,
        bytes=size,
        reason=reason or (old.reason if old else ""),
        expires=expires or (old.expires if old else None),
    )
