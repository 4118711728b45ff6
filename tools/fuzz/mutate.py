"""Damage to an input: what a hostile or a careless hand does to a file."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

Edit = tuple[str, int, int, bytes]
"""What is done, where, over how many bytes, and with what."""
KINDS: Final = ("replace", "insert", "delete", "repeat", "swap", "cut")
WORDS: Final = (
    b"\x00", b"\xff\xfe", b"\n", b"\r\n", b"\x1b[31m", b"\xe2\x80\xa8", b'"', b"{", b"}", b"[",
    b"]", b"null", b"true", b"-1", b"0", b"1e999", b"NaN", b"9223372036854775808", b"1" * 400,
    b"18446744073709551616", b"'", b"\\", b"\\ud800", b"*", b"&a ", b"!!python/object:x ",
    b"<script>", b"::error::", b" // 0", b" % 0", b"(" * 50, b"[" * 200, b'{"a":' * 200,
    b"Workspace is locked but allocation from '", b" requires 9.94 MB, current size is ",
    b"nan MB", b"1e400 GB", b"\xed\xa0\x80", b"\t", b"--- ", b": ",
)  # fmt: skip


def damaged(data: bytes, edits: Sequence[Edit]) -> bytes:
    """`data` with the edits done one after the other."""
    for kind, at, span, word in edits:
        start = at % (len(data) + 1)
        end = min(len(data), start + span)
        head, middle, tail = data[:start], data[start:end], data[end:]
        data = {
            "replace": head + word + tail,
            "insert": head + word + middle + tail,
            "delete": head + tail,
            "repeat": head + middle * 3 + tail,
            "swap": tail + middle + head,
            "cut": head,
        }[kind]
    return data
