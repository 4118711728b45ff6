"""No `full` on a source that was edited so that its reservation is missing or too small."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from typer.testing import CliRunner

from tests.unit.audit.conftest import Audited
from tests.unit.audit.test_roles_and_matches import MOST, layer, request, serving
from wstrace.audit.covering import Case, Sized, covers
from wstrace.audit.whole import audit
from wstrace.cli.app import app, register_commands
from wstrace.expr.tree import Const
from wstrace.report.audited import as_json, as_text
from wstrace.report.ci.audit_sarif import render

GOOD = layer(MOST, profiled=request(MOST))
RESERVES = request(MOST)


@pytest.mark.parametrize(
    ("condition", "named"),
    [
        ("if layer.max_model_len > 4096:", "max_model_len > 4096"),
        ("if envs.SOMETHING:", "envs.SOMETHING"),
        ("if current_platform.is_rocm():", "is_rocm"),
        ("for _ in layer.some_list:", "some_list"),
        ("while layer.more:", "layer.more"),
    ],
)
def test_a_condition_around_the_reservation_is_named(
    audited: Audited, condition: str, named: str
) -> None:
    text = layer(MOST, profiled=f"{condition}\n                {RESERVES}")
    site = serving(audited(layer=text).sites)
    assert site.match == "partial"
    assert named in site.condition


def test_an_early_end_before_the_reservation_is_named(audited: Audited) -> None:
    skip = "if layer.skip:\n                return\n            "
    site = serving(audited(layer=layer(MOST, profiled=skip + RESERVES)).sites)
    assert site.match == "partial"
    assert site.condition == "not (layer.skip)"


def test_an_early_error_leaves_nothing_out(audited: Audited) -> None:
    fail = "if layer.skip:\n                raise ValueError\n            "
    assert serving(audited(layer=layer(MOST, profiled=fail + RESERVES)).sites).match == "full"


def test_a_condition_that_the_request_shares_is_no_gap(audited: Audited) -> None:
    text = layer(MOST, profiled=f"if layer.wide:\n                {RESERVES}")
    text = text.replace("return current", "if self.wide:\n            return current")
    assert serving(audited(layer=text).sites).match == "full"


def test_a_reservation_behind_a_return_is_none(audited: Audited) -> None:
    found = audited(layer=layer(MOST, profiled=f"return\n            {RESERVES}")).sites
    assert serving(found).matched_by == ()
    assert serving(found).match != "full"


def test_a_reservation_of_a_real_step_is_none(audited: Audited) -> None:
    text = layer(MOST).replace(
        "        self.decode(q", f"        {RESERVES}\n        self.decode(q"
    )
    found = serving(audited(layer=text).sites)
    assert (found.match, found.matched_by) == ("none", ())


def test_a_reservation_that_is_not_followed_is_never_enough() -> None:
    half = Sized((Case(Const(1000)),), frozenset(), "a loop")
    assert covers(half, Sized((Case(Const(10)),), frozenset())).kind == "open"


BROKEN = GOOD + "\ndef (\n"


def test_a_broken_file_is_named_in_every_output(package: Callable[..., Path]) -> None:
    found = audit(package(bad=BROKEN, good=GOOD), "")
    assert found.unread == ("vllm/bad.py",)
    assert "vllm/bad.py" in as_text(found)
    assert json.loads(as_json(found))["unread"] == ["vllm/bad.py"]
    (run,) = json.loads(render(found))["runs"]
    (invocation,) = run["invocations"]
    assert invocation["executionSuccessful"] is False
    assert "vllm/bad.py" in invocation["toolExecutionNotifications"][0]["message"]["text"]


@pytest.mark.parametrize(("text", "code"), [(BROKEN, 3), (GOOD, 0)])
def test_check_of_a_broken_file_is_inconclusive(
    package: Callable[..., Path], text: str, code: int
) -> None:
    root = package(one=text)
    register_commands()
    words = ["audit", "--changed", str(root / "one.py"), "--check"]
    done = CliRunner().invoke(app, words)
    assert done.exit_code == code
    assert ("no Python of today: vllm/one.py" in done.output) == (code == 3)


def test_a_broken_file_without_a_request_of_its_own_is_named_too(
    package: Callable[..., Path],
) -> None:
    root = package(plain="def (\n")
    assert audit(root, "", [root / "plain.py"]).unread == ("vllm/plain.py",)


def test_a_condition_made_in_steps_is_taken_apart(audited: Audited) -> None:
    steps = "ok = is_workspace_manager_initialized()\n            ok = ok and {}\n"
    steps += "            if ok: "
    gated = layer(MOST, profiled=steps.format("envs.SOMETHING") + RESERVES)
    site = serving(audited(layer=gated).sites)
    assert (site.match, site.condition) == ("partial", "envs.SOMETHING")
    either = "(c.enable_chunked_prefill or c.enable_prefix_caching)"
    open_gate = layer(MOST, profiled=steps.format(either) + RESERVES)
    assert serving(audited(layer=open_gate).sites).match == "full"
