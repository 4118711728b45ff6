"""One parser of vLLM's release; expected numbers are what each build was made from."""

from __future__ import annotations

import re
from pathlib import Path
from random import Random

import pytest
from packaging.version import Version

from wstrace import versions
from wstrace.versions import release_of

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def checked(monkeypatch: pytest.MonkeyPatch) -> None:
    """The span that the numbers below were worked out for, whatever is checked by now."""
    monkeypatch.setattr(versions, "CHECKED_FROM", "0.13.0")
    monkeypatch.setattr(versions, "CHECKED_WITH", "0.33.0")


def test_what_people_read_of_the_span_is_the_span() -> None:
    """`0.13 to 0.33` in the README and in docs/; a known site may be of other releases."""
    spans = []
    pages = {ROOT / "README.md", *(ROOT / "docs").rglob("*.md")}
    for page in pages - {ROOT / "docs" / "known-sites.md"}:
        told = re.findall(r"\b0\.13(?:\.0)? to (0\.\d+)", page.read_text())
        spans += [(page.name, newest) for newest in told]
    assert ("README.md", newest := ".".join(versions.CHECKED_WITH.split(".")[:2])) in spans
    assert {span for span in spans if span[1] != newest} == set()


@pytest.mark.parametrize(
    ("text", "numbers", "early"),
    [
        ("0.28.0+cu130", (0, 28, 0), False),
        ("v0.32.0+cpu", (0, 32, 0), False),
        ("0.21", (0, 21, 0), False),
        ("0.21.0.post1", (0, 21, 0), False),
        ("0.21.0.post1.dev3+gabc", (0, 21, 0), False),
        ("0.23.1rc1.dev7+g4845aee6b", (0, 23, 1), True),
        ("0.28.0-rc1", (0, 28, 0), True),
        ("0.28.0.dev5", (0, 28, 0), True),
        ("0.1.2", (0, 1, 2), False),
        ("0.1.dev12345", None, False),
        ("0.1.dev12345+gabcdef.d20260101", None, False),
        ("0.0.0+unknown", None, False),
        ("V0.21.0", (0, 21, 0), False),
        ("vllm 0.21.0", (0, 21, 0), False),
        ("vLLM v0.21.0", (0, 21, 0), False),
        ("vllm==0.21.0", (0, 21, 0), False),
        ("version: 0.21.0", (0, 21, 0), False),
        ("(0.21.0)", (0, 21, 0), False),
        ("0.21.0;", (0, 21, 0), False),
        ("1!0.21.0", (0, 21, 0), False),  # a packager's epoch
        ("0.21.0-1", (0, 21, 0), False),  # PEP 440: post1
        ("0.21.0.r2", (0, 21, 0), False),
        ("v0.21.0-5-gabcdef0", (0, 21, 0), False),  # git describe: 5 commits behind the tag
        ("0.21.0rc", (0, 21, 0), True),
        ("0.21.0-alpha", (0, 21, 0), True),
        ("0.21.0.post1.dev0", (0, 21, 0), False),
        ("0.21.dev", (0, 21, 0), True),
        ("nightly-0.21.0", (0, 21, 0), True),
        ("0.21.0-nightly", (0, 21, 0), True),
        ("0.21.x", (0, 21, 0), False),
        ("0.21.0-cu130", (0, 21, 0), False),  # not the candidate c
        (">=0.21.0", None, False),
        ("python 3.11", None, False),
        ("21", None, False),
        ("dev", None, False),
        ("main Jul 2026", None, False),
        ("", None, False),
        (None, None, False),
    ],
)
def test_a_version_text_names_a_release_or_none(
    text: str | None, numbers: tuple[int, int, int] | None, early: bool
) -> None:
    release = release_of(text)
    assert (release.numbers, release.early) == (numbers, early)


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("text", ["0.1.dev12345", "nonsense", None, "0.34.0", "1.0.0"])
def test_what_is_newer_than_the_checked_ones_has_all_and_says_so(text: str | None) -> None:
    release = release_of(text)
    assert release.has("0.33.0")
    assert release.has_fix("0.33.0")
    assert release.newer_than_checked
    assert "0.33.0" in release.taken_for


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize("text", ["0.13.0", "0.13", "0.33.2", "0.33.0+cu130", "0.23.1rc1.dev7"])
def test_a_checked_release_is_taken_for_itself(text: str) -> None:
    assert (release_of(text).checked, release_of(text).taken_for) == (True, "")


@pytest.mark.usefixtures("checked")
@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("0.21.x", "0.21.x names no one release: taken for 0.21.0"),
        ("0.21.*", "0.21.* names no one release: taken for 0.21.0"),
        ("0.21.0, 0.22.0", "0.21.0, 0.22.0 names no one release: taken for 0.21.0"),
        ("0.21.0-cu130", "0.21.0-cu130 names no one release: taken for 0.21.0"),
        ("0.21.3-custom", "0.21.3-custom names no one release: taken for 0.21.3"),
        (
            "nightly-0.21.0",
            "nightly-0.21.0 names no one release: taken for a build on the way to 0.21.0",
        ),
        (">=0.21.0", ">=0.21.0 names no release: taken for newer than 0.33.0"),
        ("", "vLLM says no version: taken for newer than 0.33.0"),
        (None, "vLLM says no version: taken for newer than 0.33.0"),
    ],
)
def test_what_may_mean_another_says_what_it_is_taken_for(text: str | None, told: str) -> None:
    assert release_of(text).taken_for == told


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("v0.21.0", "0.21.0"),
        ("vllm==0.21.0", "0.21.0"),
        ("0.28.0+cu130", "0.28.0+cu130"),
        ("0.21.0.", "0.21.0"),
        ("main", ""),
    ],
)
def test_the_version_is_what_pip_takes(text: str, version: str) -> None:
    assert release_of(text).version == version


@pytest.mark.usefixtures("checked")
def test_an_older_release_is_taken_for_the_oldest() -> None:
    assert release_of("0.12.0").taken_for.endswith("(0.13.0 to 0.33.0): taken for 0.13.0")
    assert not release_of("0.12.9").has("0.13.0")


IN_ORDER = (
    ("0.9.0",),
    ("0.9.0.1",),
    ("0.21.0.dev1", "nightly-0.21.0.dev1"),
    ("0.21.0.dev12",),
    ("0.21.0a1.dev3",),
    ("0.21.0a1", "0.21.0-alpha1"),
    ("0.21.0b2",),
    ("0.21.0rc1.dev7+g4845aee6b",),
    ("0.21.0rc1", "0.21.0-rc1", "v0.21.0c1"),
    ("0.21.0rc2",),
    ("0.21.0rc10",),
    ("0.21.0", "v0.21", "0.21.0+cu130", "vllm 0.21.0", "1!0.21.0", "0.21.x"),
    ("0.21.0.post1.dev3+gabc",),
    ("0.21.0.post1", "0.21.0-1"),
    ("0.21.0.post2",),
    ("0.21.1rc1",),
    ("0.21.1",),
    ("0.100.0",),
    ("1.0.0",),
    ("0.1.dev12345+gabcdef", "0.1.dev1", "main", "0.0.0+unknown"),
)


@pytest.mark.parametrize("seed", range(20))
def test_releases_have_one_order_however_they_come(seed: int) -> None:
    """As PEP 440 has it, without local parts; what names no release is last."""
    told = [text for equal in IN_ORDER for text in equal]
    ranks = {text: rank for rank, equal in enumerate(IN_ORDER) for text in equal}
    Random(seed).shuffle(told)
    ordered = sorted(told, key=lambda text: release_of(text).order)
    assert [ranks[text] for text in ordered] == sorted(ranks.values())
    for equal in IN_ORDER:
        assert len({release_of(text).order for text in equal}) == 1


def test_the_order_is_that_of_packaging() -> None:
    one_each = [equal[0].partition("+")[0] for equal in IN_ORDER[:-1]]
    assert sorted(one_each, key=Version) == one_each


def test_a_build_on_the_way_to_a_release_may_lack_its_fix() -> None:
    candidate = release_of("0.24.0rc1.dev35+g4845aee6b")
    assert candidate.has("0.24.0")
    assert not candidate.has_fix("0.24.0")
    assert candidate.has_fix("0.23.0")
    assert release_of("0.24.0.post1").has_fix("0.24.0")
