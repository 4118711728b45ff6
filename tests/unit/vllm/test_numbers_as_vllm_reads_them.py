"""Numbers as people write them, held against the function that reads them in vLLM."""

from __future__ import annotations

import argparse
from collections.abc import Callable

import pytest

from wstrace.units import whole_number

VLLMS = {
    "32768": 32_768,
    " 32768 ": 32_768,
    "32_768": 32_768,
    "+5": 5,
    "007": 7,
    "-1": -1,
    "1k": 1_000,
    "1K": 1_024,
    "25.6k": 25_600,
    "0.5m": 500_000,
    "2.5g": 2_500_000_000,
    "1.5t": 1_500_000_000_000,
    "64.0k": 64_000,
    "1.001k": 1_000,  # cut off: 1000.9999999999999
    "3M": 3 << 20,
    "2G": 2 << 30,
    "1T": 1 << 40,
    "25.6K": None,
    "64.0K": None,
    "1.5M": None,
    "1.5T": None,
    "25.6": None,
    "1.": None,
    ".5k": None,
    "1e3": None,
    "64q": None,
    "2kk": None,
    "25,6k": None,
    "²": None,
    "": None,
}
OURS = {
    "4.0": 4,
    "32,768": 32_768,
    "8GiB": 8 << 30,
    "8 GB": 8 << 30,
    "1.5GiB": 3 << 29,
    "1.5kB": 1_536,
    "1.5B": None,
    "9" * 21: None,
    "9" * 21 + "k": None,
    "0." + "1" * 5000 + "k": None,
}


@pytest.mark.parametrize(("text", "number"), [*VLLMS.items(), *OURS.items()])
def test_a_number(text: str, number: int | None) -> None:
    assert whole_number(text) == number


@pytest.fixture(scope="module")
def of_vllm() -> Callable[[str], int]:
    module = pytest.importorskip("vllm.utils.argparse_utils")
    found: Callable[[str], int] = module.human_readable_int
    return found


@pytest.mark.parametrize(("text", "number"), VLLMS.items())
def test_vllm_reads_the_same(
    text: str, number: int | None, of_vllm: Callable[[str], int]
) -> None:
    try:
        read: int | None = of_vllm(text)
    except (ValueError, argparse.ArgumentTypeError):
        read = None
    assert read == number
