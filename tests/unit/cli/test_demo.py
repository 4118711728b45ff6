"""What the demo shows of a reserve config: what a newcomer can take in."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import yaml

from tests.commands import wstrace
from tests.unit.reserve.examples import config
from wstrace.cli.commands.demo import command
from wstrace.cli.demo import excerpt
from wstrace.errors import WstraceError
from wstrace.reserve.config import dumps

SAMPLE = Path(__file__).resolve().parents[3] / "sample_traces" / "demo-crash"


def test_the_excerpt_is_slots_and_the_site_that_decides() -> None:
    shown = yaml.safe_load(excerpt(dumps(config())))
    assert shown["slots"] == [
        {"ubatch": 0, "lane": 0, "bytes": 4194304},
        {"ubatch": 0, "lane": 1, "bytes": 4194304},
    ]
    (site,) = shown["sites"]
    assert site.keys() == {"site", "grade", "bytes", "formula"}
    assert (site["site"], site["grade"]) == ("attention.py:Attention._continuation", "proved")
    assert "num_computed_tokens" in site["formula"]


def test_the_excerpt_of_the_demos_own_reserve_fits_ten_lines(tmp_path: Path) -> None:
    target = tmp_path / "reserve.yaml"
    assert wstrace("reserve", str(SAMPLE), "-o", str(target)).returncode == 0
    lines = excerpt(target.read_text()).splitlines()
    assert len(lines) <= 10
    assert lines[0] == "slots:"
    assert any("_continuation_prefill" in line for line in lines)


def test_an_empty_reserve_shows_its_empty_lists() -> None:
    shown = yaml.safe_load(excerpt(dumps(config(slots=[], sites=[]))))
    assert shown == {"slots": [], "sites": []}


def test_without_an_engine_it_makes_no_folder_and_says_what_does(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    with pytest.raises(WstraceError, match="needs vLLM's CPU engine"):
        command(tmp_path / "out")
    assert not (tmp_path / "out").exists()
