"""Numbers as people write and read them: bytes 1024-based, as in vLLM's log; counts."""

from __future__ import annotations

import re

from wstrace.errors import WstraceError

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_MOST = 1 << 50
_MOST_DIGITS = 20
# matches: "64 MiB"
_SIZE = re.compile(r"(?i)\s*(\d+(?:\.\d+)?)\s*([kmgt]?)(i?b)?\s*")


def parse_bytes(text: str) -> int:
    """Bytes of `2GiB`, `512M`, `64 MB` (all 1024-based) or `1048576`.

    Raises WstraceError (exit 2) for anything else.
    """
    match = _SIZE.fullmatch(text)
    if match is None or ("." in match[1] and not match[2]):  # 0.9 is a share, no byte
        raise WstraceError(
            f"Not a size: {text[:40]!r}.", "Write it as 2GiB, 512MiB or in bytes."
        )
    size = float(match[1]) * _UNITS[match[2].lower()]
    if size > _MOST:
        raise WstraceError(f"Too large: {text[:40]!r}.", "Give at most 1024 TiB.")
    return round(size)


def as_text(value: object) -> str:
    """What Python code gave, as a person would write it. An integer of more digits than any
    number here has is no decimal text: Python prints no more than 4,300."""
    if isinstance(value, int) and abs(value) >= 10**_MOST_DIGITS:
        return hex(value)
    return str(value)


# 32768, 32_768, 25.6k (decimal), 64K (binary), 1.5GiB and 8 GB (bytes), -1
# matches: "32,768"
_WHOLE = re.compile(
    r"([+-]?)(\d{1,3}(?:,\d{3})+|\d[\d_]*)(\.\d+)?\s*([kKmMgGtT]?)((?:i?[bB])?)"
)


def whole_number(text: str) -> int | None:
    """An integer as vLLM reads one: 25.6k is 25600 and 64K is 65536. Beyond that 1.5GiB and 8GB
    are bytes, 32,768 has a comma, and 4.0 is what Python prints.

    None for anything else, and for more than 20 digits. vLLM 0.32.0: human_readable_int takes a
    decimal point before k, m, g and t alone, and cuts off what is no whole number.
    """
    match = _WHOLE.fullmatch(text.strip())
    if match is None or not text.strip().isascii():
        return None
    sign, whole, part, unit, of_bytes = match.groups(default="")
    digits = whole.replace(",", "").replace("_", "")
    decimal = unit.islower() and not of_bytes
    takes_part = decimal or (unit and of_bytes) or not (unit or part.strip(".0"))
    if len(digits + part) > _MOST_DIGITS or (part and not takes_part):
        return None
    power = 3 * " kmgt".index(unit.lower() or " ")
    scale = 10**power if decimal else 1 << power // 3 * 10
    size = int(float(digits + part) * scale) if part or decimal else int(digits) * scale
    return -size if sign == "-" else size


def count_of(text: str) -> int | None:
    """A number of plain digits, as of ports and counts; None for all else, and for more than 20
    digits: Python reads no more than 4,300."""
    return int(text) if text.isdecimal() and len(text) <= _MOST_DIGITS else None


def human(size: int | None) -> str:
    """`9.94 MiB` for 10420224; a dash for None."""
    if size is None:
        return "-"
    for unit, scale in (("TiB", 1 << 40), ("GiB", 1 << 30), ("MiB", 1 << 20), ("KiB", 1 << 10)):
        if abs(size) >= scale:
            return f"{size / scale:.2f} {unit}"
    return f"{size} B"


def exact(size: int | None) -> str:
    """`10,420,224 bytes (9.94 MiB)`; `512 bytes` where a unit would say it twice."""
    if size is None:
        return "-"
    text = plural(size, "byte")
    return text if abs(size) < 1 << 10 else f"{text} ({human(size)})"


def plural(count: int, noun: str, several: str = "") -> str:
    """`1 site`, `2 sites`; `several` is the noun's plural where it is not made with an s."""
    return f"{count:,} {noun if count == 1 else several or f'{noun}s'}"
