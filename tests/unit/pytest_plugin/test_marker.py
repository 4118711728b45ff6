"""The marker's arguments become a small dataclass, or an error that says what is wrong."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from wstrace.errors import WstraceError
from wstrace.pytest_marker import Marker, read_marker


@pytest.mark.parametrize(
    ("kwargs", "expected"),
    [
        ({}, Marker()),
        ({"max_arena": "64MiB"}, Marker(max_arena=64 * 1024 * 1024)),
        ({"max_arena": 1000}, Marker(max_arena=1000)),
        ({"max_arena": None, "fail_on": "WS102"}, Marker(fail_on="WS102")),
        ({"reserve": Path("r.yaml")}, Marker(reserve="r.yaml")),
        (
            {"on_growth": "grow", "allow_unlocked": True},
            Marker(None, "escapes", True, None, "grow"),
        ),
    ],
)
def test_arguments(kwargs: dict[str, Any], expected: Marker) -> None:
    assert read_marker((), kwargs) == expected


@pytest.mark.parametrize(
    ("args", "kwargs", "says"),
    [
        (("64MiB",), {}, "64MiB"),
        ((), {"maxarena": 1}, "maxarena"),
        ((), {"max_arena": "big"}, "big"),
        ((), {"fail_on": "WS999"}, "WS999"),
        ((), {"on_growth": "shrink"}, "shrink"),
        ((), {"min_exercise": "speed=1"}, "speed"),
    ],
)
def test_wrong_arguments(args: tuple[Any, ...], kwargs: dict[str, Any], says: str) -> None:
    with pytest.raises(WstraceError, match=says):
        read_marker(args, kwargs)
