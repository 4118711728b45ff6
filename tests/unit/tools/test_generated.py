"""Every generated page and report is what its generator makes of it today."""

from __future__ import annotations

from pathlib import Path

import pytest

from tools.docs.__main__ import GENERATORS, renewed
from tools.docs.examples import cut
from tools.docs.page import Generator, between


@pytest.mark.parametrize("name", GENERATORS)
def test_generated_pages_are_fresh(name: str) -> None:
    assert renewed(GENERATORS[name], write=False) == []


def test_a_stale_page_is_named_and_only_written_when_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tools.docs.__main__.ROOT", tmp_path)
    page = tmp_path / "page.md"
    page.write_text("old\n")
    made = Generator("pages", lambda: iter([(page, "new\n")]))
    told = ["page.md is stale: run scripts/make-docs pages"]
    assert renewed(made, write=False) == told
    assert page.read_text() == "old\n"
    assert renewed(made, write=True) == told
    assert page.read_text() == "new\n"
    assert renewed(made, write=False) == []


def test_a_block_is_replaced_between_its_marks() -> None:
    assert between("a\n<b>\nold\n<e>\nz", "<b>", "<e>", "new") == "a\n<b>\nnew\n<e>\nz"
    with pytest.raises(ValueError, match="no <b>"):
        between("a <e>", "<b>", "<e>", "new")


def test_an_example_is_cut_where_its_marker_says() -> None:
    lines = ["WS101 x", "  more", "", "WS201 y", "  end"]
    assert cut(lines, "until WS201") == ["WS101 x", "  more", "..."]
    assert cut(lines, "only WS201") == ["...", "WS201 y", "  end"]
    assert cut(["a: 1", "  b: 2", "# no", "c: 3"], "keep a") == [
        "# shortened",
        "a: 1",
        "  b: 2",
    ]
