"""A site's name is taken apart in one place, colons in files and functions included."""

from __future__ import annotations

import pytest

from wstrace.trace.site_key import SiteKey

ATTENTION = SiteKey("vllm/v1/turboquant_attn.py", "TurboQuant._continuation_prefill")


@pytest.mark.parametrize(
    "key",
    [
        ATTENTION,
        SiteKey("C:/engine/plugin.py", "Layer.forward"),
        SiteKey("C:\\engine\\plugin.py", "Layer.forward"),
        SiteKey("<string>:1", "f"),
        SiteKey("<string>", "make.<locals>.<lambda>"),
        SiteKey("plugin.py", "op:forward"),
        SiteKey("C:/engine/plugin.py", "op:17:forward"),
        SiteKey("?", "site 3"),
    ],
)
def test_a_site_and_a_call_of_it_come_back_whole(key: SiteKey) -> None:
    assert SiteKey.named(str(key)) == key
    call = f"{key.file}:747:{key.function}"
    assert SiteKey.called(call) == key
    assert key.is_called(str(key))
    assert key.is_called(call)


def test_without_a_colon_it_is_a_function() -> None:
    assert SiteKey.named("forward") == SiteKey("", "forward")
    assert SiteKey.called("forward") == SiteKey("", "forward")


def test_without_a_line_a_call_is_a_site() -> None:
    assert SiteKey.called("C:/x.py:forward") == SiteKey("C:/x.py", "forward")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ("turboquant_attn.py:747:_continuation_prefill", True),
        ("turboquant_attn.py:12:_continuation_prefill", True),
        ("v1/turboquant_attn.py:TurboQuant._continuation_prefill", True),
        ("_continuation_prefill", True),
        ("TurboQuant._continuation_prefill", True),
        ("attn.py:747:_continuation_prefill", False),
        ("turboquant_attn.py:747:forward", False),
        ("turboquant_attn.py", False),
        ("", False),
    ],
)
def test_what_a_site_is_called(text: str, meant: bool) -> None:
    assert ATTENTION.is_called(text) is meant


def test_a_number_in_a_file_name_is_no_line() -> None:
    """`exec` code may be compiled under any name."""
    one, two = SiteKey("<string>:1", "f"), SiteKey("<string>:2", "f")
    assert one.is_called("<string>:1:f")
    assert not two.is_called("<string>:1:f")
    assert SiteKey("<string>", "f").is_called("<string>:1:f")
