from __future__ import annotations

import pytest

from wstrace.errors import WstraceError
from wstrace.testbed.settings import from_environment


def test_names_become_classes() -> None:
    settings = from_environment({"WSTRACE_TESTBED": "continuation, my.layers:Gather"})
    assert settings.patterns == ("wstrace.testbed.patterns:Continuation", "my.layers:Gather")


def test_numbers_are_read() -> None:
    settings = from_environment(
        {
            "WSTRACE_TESTBED": "clean",
            "WSTRACE_TESTBED_NUM_LANES": "2",
            "WSTRACE_TESTBED_CONSTANT_BYTES": "1024",
        }
    )
    assert (settings.num_lanes, settings.constant_bytes, settings.num_ubatches) == (2, 1024, 1)


def test_an_unknown_pattern_is_refused() -> None:
    with pytest.raises(WstraceError, match="unknown pattern: 'continuaton'"):
        from_environment({"WSTRACE_TESTBED": "continuaton"})


@pytest.mark.parametrize("text", ["two", "-1", "", "1.5"])
def test_a_bad_number_is_refused(text: str) -> None:
    environ = {"WSTRACE_TESTBED": "clean", "WSTRACE_TESTBED_NUM_LANES": text}
    with pytest.raises(WstraceError, match="WSTRACE_TESTBED_NUM_LANES"):
        from_environment(environ)
