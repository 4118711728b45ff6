"""Names made safe to show."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wstrace.report.html.names import LONGEST, clean, clean_argv, figure_text, visible


@pytest.mark.parametrize(
    "secret", ["hf_abcdefghijklmnop", "sk-abcdefghijklmnop", "ghp_abcdefghijklmnopqrst"]
)
@pytest.mark.parametrize("padding", [0, 90, 150, 158, 4080, 4090, 9000])
def test_no_cut_uncovers_a_secret(secret: str, padding: int) -> None:
    shown = clean("x " * (padding // 2) + f"token {secret} " + "y " * 4000)
    assert secret[:12] not in shown
    assert secret[-8:] not in shown


def test_command_line_loses_secret_values() -> None:
    shown = clean_argv(["vllm", "serve", "--api-key", "abc123", "--hf-token=zzz999", "m"])
    assert shown == "vllm serve --api-key [redacted] --hf-token=[redacted] m"


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("plain", "plain"),
        ("a\u202eb", "a<U+202E>b"),
        ("\u2066x\u2069", "<U+2066>x<U+2069>"),
        ("nul\x00tab\t", "nul<U+0000>tab<U+0009>"),
        ("übung → 測試", "übung → 測試"),
    ],
)
def test_marks_that_reorder_or_hide_are_spelt_out(text: str, shown: str) -> None:
    assert visible(text) == shown


@given(st.text(max_size=6000))
def test_any_text_becomes_short_printable_and_without_direction_marks(text: str) -> None:
    shown = clean(text)
    assert len(shown) <= LONGEST
    assert shown.replace(" ", "").isprintable() or all(
        ord(c) > 127 for c in shown if not c.isprintable()
    )
    assert not set(shown) & set(
        "\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069\u200e\u200f"
    )


@given(st.text(alphabet='<>&"%{}ab/', max_size=60))
def test_no_markup_reaches_a_figure(text: str) -> None:
    shown = figure_text(text)
    assert "<" not in shown
    assert ">" not in shown
