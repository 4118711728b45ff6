"""Sources whose reservation was taken away or made smaller, in ways that nobody wrote for.

The right answer of each was written down before the audit was asked. `full` is the one wrong
answer that kills an engine: it may not be said where the reservation can be missing.
"""

from __future__ import annotations

import pytest

from tests.unit.audit.conftest import Audited
from tests.unit.audit.test_roles_and_matches import FIXED, MOST, STEP, layer, request, serving
from wstrace.audit.whole import AuditedSite

RESERVES = request(MOST)


def verdict(audited: Audited, text: str, **more: str) -> AuditedSite:
    sites = audited(layer=text, **more).serving
    named = [
        s for s in sites if s.enclosing in ("Impl.decode", "Impl.forward", "Impl.warmup_decode")
    ]
    (site,) = [s for s in named if s.phases == ("real step",)]
    return site


def profiled(lines: str) -> str:
    """The layer, with these lines in the branch of its profile run."""
    return layer(MOST, profiled=lines.replace("\n", "\n            "))


NEVER = {
    "removed": "pass",
    "no longer a call": "current_workspace_manager().get_simultaneous",
    "in a string": f"'''{RESERVES}'''",
    "in a dead branch": f"if False:\n    {RESERVES}",
    "in a branch of 0": f"if 0:\n    {RESERVES}",
    "for type checkers": f"if TYPE_CHECKING:\n    {RESERVES}",
    "for type checkers, spelt out": f"if typing.TYPE_CHECKING:\n    {RESERVES}",
    "in the other arm of True": f"if True:\n    pass\nelse:\n    {RESERVES}",
    "in no loop": f"while False:\n    {RESERVES}",
    "in an expression that is never": f"False and {RESERVES}",
    "in a lambda that nobody calls": f"later = lambda: {RESERVES}",
    "in a function that nobody calls": f"def later():\n    {RESERVES}",
    "after the lock": f"lock_workspace()\n{RESERVES}",
    "after the manager's lock": f"current_workspace_manager().lock()\n{RESERVES}",
    "behind a raise": f"raise NotImplementedError\n{RESERVES}",
}


@pytest.mark.parametrize("lines", NEVER.values(), ids=NEVER)
def test_what_never_runs_in_time_reserves_nothing(audited: Audited, lines: str) -> None:
    site = verdict(audited, profiled(lines))
    assert site.match == "none", site.reason
    assert site.matched_by == ()


SOMETIMES = {
    "an if": (f"if self.wide:\n    {RESERVES}", "self.wide"),
    "an and": (f"self.wide and {RESERVES}", "self.wide"),
    "an or": (f"self.narrow or {RESERVES}", "self.narrow"),
    "an if expression": (f"{RESERVES} if self.wide else None", "self.wide"),
    "a comprehension": (f"[{RESERVES} for _ in self.layers]", "self.layers"),
    "a comprehension's if": (f"[{RESERVES} for _ in (1,) if self.wide]", "self.wide"),
    "a handler": (f"try:\n    prepare()\nexcept ImportError:\n    {RESERVES}", "ImportError"),
    "a try's else": (
        f"try:\n    prepare()\nexcept ImportError:\n    pass\nelse:\n    {RESERVES}",
        "ImportError",
    ),
    "behind what may fail": (
        f"try:\n    prepare()\n    {RESERVES}\nexcept ImportError:\n    pass",
        "ImportError",
    ),
    "a case": (f"match self.kind:\n    case 'wide':\n        {RESERVES}", "self.kind"),
    "a continue": (
        f"for one in (1, 2):\n    if self.narrow:\n        continue\n    {RESERVES}",
        "self.narrow",
    ),
    "another lane": (f"with use_workspace_lane(1):\n    {RESERVES}", "use_workspace_lane(1)"),
    "an early return in a with": (
        f"with timed():\n    if self.narrow:\n        return\n{RESERVES}",
        "self.narrow",
    ),
    "an early return in a loop": (
        f"for one in self.layers:\n    if one.narrow:\n        return\n{RESERVES}",
        "one.narrow",
    ),
}


@pytest.mark.parametrize(("lines", "named"), SOMETIMES.values(), ids=SOMETIMES)
def test_what_runs_sometimes_is_partial_and_says_when(
    audited: Audited, lines: str, named: str
) -> None:
    site = verdict(audited, profiled(lines))
    assert site.match == "partial", site.reason
    assert named in site.condition


ALWAYS = {
    "in a with": f"with torch.inference_mode():\n    {RESERVES}",
    "in a finally": f"try:\n    pass\nfinally:\n    {RESERVES}",
    "in a try that goes on": f"try:\n    {RESERVES}\nexcept RuntimeError:\n    raise",
    "after an unlock": f"lock_workspace()\nunlock_workspace()\n{RESERVES}",
    "in a loop of a literal": f"for _ in (1, 2):\n    {RESERVES}",
    "under True": f"if True:\n    {RESERVES}",
    "kept in a name": f"mine = {RESERVES}",
    "by its method": f"get = current_workspace_manager().get_simultaneous\nget({MOST})",
    "by keyword-free stars": f"specs = [{MOST}]\n{request('*specs')}",
    "an import that is there": (
        "from vllm.v1.worker.workspace import current_workspace_manager as mine\n"
        f"mine().get_simultaneous({MOST})"
    ),
}


@pytest.mark.parametrize("lines", ALWAYS.values(), ids=ALWAYS)
def test_what_always_runs_is_full(audited: Audited, lines: str) -> None:
    site = verdict(audited, profiled(lines))
    assert site.match == "full", site.reason


LESS = {
    "half": MOST.replace("self.width", "self.width // 2"),
    "one row less": MOST.replace("tokens, ", "tokens - 1, "),
    "half the bytes of an element": MOST.replace("float32", "float16"),
    "another limit": MOST.replace("max_num_batched_tokens", "max_num_seqs"),
    "a cap above what is usual": MOST.replace(
        "self.max_num_batched_tokens", "min(self.max_num_batched_tokens, 300000)"
    ),
    "a cap on what is not known": MOST.replace("self.width", "min(self.width, 64)"),
    "a cap after a division": MOST.replace(
        "self.max_num_batched_tokens", "4 * min(self.max_num_batched_tokens // 4, 300000)"
    ),
}


@pytest.mark.parametrize("spec", LESS.values(), ids=LESS)
def test_a_smaller_reservation_is_partial(audited: Audited, spec: str) -> None:
    text = layer(MOST, profiled=request(spec)).replace(
        "        self.width = width",
        "        self.width = width\n        self.max_num_seqs = scheduler_config.max_num_seqs",
    )
    site = verdict(audited, text)
    assert site.match == "partial", site.reason
    assert site.example


CAPPED = MOST.replace("self.max_num_batched_tokens", "min(self.max_num_batched_tokens, {})")


@pytest.mark.parametrize(
    ("asked", "held", "match"),
    [
        (CAPPED.format(300_000), CAPPED.format(300_000), "full"),
        (CAPPED.format(300_000), CAPPED.format(300_001), "full"),
        (CAPPED.format(300_000), CAPPED.format(299_999), "partial"),
        (MOST, CAPPED.format(300_000), "partial"),
        (CAPPED.format(300_000), MOST, "full"),
    ],
)
def test_caps_are_compared_above_and_below_them(
    audited: Audited, asked: str, held: str, match: str
) -> None:
    site = verdict(audited, layer(asked, profiled=request(held)))
    assert site.match == match, site.reason


def test_an_amount_by_a_condition_is_not_the_larger_one(audited: Audited) -> None:
    held = "rows = self.max_num_batched_tokens if self.wide else 16\n"
    held += request("((rows, self.width), torch.float32)")
    assert verdict(audited, profiled(held)).match == "partial"


def test_the_same_condition_on_both_sides_is_full(audited: Audited) -> None:
    rows = "self.max_num_batched_tokens if self.wide else 16"
    spec = f"(({rows}, self.width), torch.float32)"
    assert verdict(audited, layer(spec, profiled=request(spec))).match == "full"


def test_a_condition_the_other_way_round_is_partial(audited: Audited) -> None:
    spec = "(({} if self.wide else {}, self.width), torch.float32)"
    asked = spec.format("self.max_num_batched_tokens", 16)
    held = spec.format(16, "self.max_num_batched_tokens")
    assert verdict(audited, layer(asked, profiled=request(held))).match == "partial"


def test_two_buffers_at_once_need_both(audited: Audited) -> None:
    one = layer(f"{MOST}, {MOST}", profiled=request(MOST))
    assert verdict(audited, one).match in ("partial", "none")
    apart = layer(f"{MOST}, {MOST}", profiled=f"{request(MOST)}\n            {request(MOST)}")
    assert verdict(audited, apart).match in ("partial", "none")
    both = layer(f"{MOST}, {MOST}", profiled=request(f"{MOST}, {MOST}"))
    assert verdict(audited, both).match == "full"


CALLED = """
class Impl:
    def __init__(self, scheduler_config, width):
        self.max_num_batched_tokens = scheduler_config.max_num_batched_tokens
        self.width = width
        {call}

    {decorator}
    def _prepare(self):
        current_workspace_manager().get_simultaneous({held})

    def forward(self, layer, query, attn_metadata):
        return current_workspace_manager().get_simultaneous({held})
"""


def called(call: str = "self._prepare()", decorator: str = "") -> str:
    return CALLED.format(call=call, decorator=decorator or "# no decorator", held=MOST)


@pytest.mark.parametrize(
    ("call", "match", "named"),
    [
        ("self._prepare()", "full", ""),
        ("if self.wide:\n            self._prepare()", "partial", "self.wide"),
        ("self.wide and self._prepare()", "partial", "self.wide"),
        ("if self.narrow:\n            return\n        self._prepare()", "partial", "narrow"),
        ("for one in self.layers:\n            self._prepare()", "partial", "self.layers"),
        ("try:\n            go()\n        except OSError:\n            self._prepare()",
         "partial", "OSError"),
        ("if TYPE_CHECKING:\n            self._prepare()", "none", ""),
        ("return\n        self._prepare()", "none", ""),
        ("later = self._prepare", "none", ""),
        ("later = lambda: self._prepare()", "none", ""),
    ],
)  # fmt: skip
def test_how_the_reserving_method_is_called_counts(
    audited: Audited, call: str, match: str, named: str
) -> None:
    site = verdict(audited, called(call))
    assert site.match == match, (site.reason, site.condition)
    assert named in site.condition


@pytest.mark.parametrize(
    ("decorator", "match"),
    [
        ("@torch.inference_mode()", "full"),
        ("@torch.no_grad()", "full"),
        ("@override", "full"),
        ("@only_on_first_rank", "partial"),
        ("@skip_if(True)", "partial"),
    ],
)
def test_a_decorator_may_leave_the_call_out(
    audited: Audited, decorator: str, match: str
) -> None:
    assert verdict(audited, called(decorator=decorator)).match == match


SUBCLASS = """
class Small(Impl):
    def {method}(self{more}):
        {body}
"""


@pytest.mark.parametrize(
    ("method", "more", "body", "match"),
    [
        ("_prepare", "", "pass", "partial"),
        ("_prepare", "", "super()._prepare()", "full"),
        ("__init__", ", width", "self.width = width", "partial"),
        ("__init__", ", c, width", "super().__init__(c, width)", "full"),
        ("other", "", "pass", "full"),
    ],
)
def test_a_subclass_may_leave_the_reservation_out(
    audited: Audited, method: str, more: str, body: str, match: str
) -> None:
    text = called() + SUBCLASS.format(method=method, more=more, body=body)
    site = verdict(audited, text)
    assert site.match == match, site.reason
    assert ("Small" in site.condition) == (match == "partial")


def test_another_class_of_the_module_reserves_for_itself(audited: Audited) -> None:
    text = layer(MOST) + layer(MOST, constructed=RESERVES).replace("Impl", "Other").replace(
        "decode", "other"
    )
    sites = [s for s in audited(layer=text).serving if s.enclosing.startswith("Impl")]
    assert [s.match for s in sites] == ["none"]
    made = text.replace("self.width = width", "self.width = width\n        self.o = Other()", 1)
    sites = [s for s in audited(layer=made).serving if s.enclosing.startswith("Impl")]
    assert [s.match for s in sites] == ["full"]


HELPER = """
def scratch(rows, width):
    return current_workspace_manager().get_simultaneous(((rows, width), torch.float32))

class Impl:
    def __init__(self, scheduler_config, width):
        self.max_num_batched_tokens = scheduler_config.max_num_batched_tokens
        self.width = width

    def forward(self, layer, query, attn_metadata):
        if attn_metadata is None:
            {profiled}
            return
        {served}
"""
WHOLE = "scratch(self.max_num_batched_tokens, self.width)"


@pytest.mark.parametrize(
    ("profile", "served", "full"),
    [
        (WHOLE, WHOLE, True),
        ("rows = 16\n            scratch(rows, self.width)",
         "rows = attn_metadata.num_tokens\n        scratch(rows, self.width)", False),
        ("scratch(16, self.width)", WHOLE, False),
        (f"if self.wide:\n                {WHOLE}", WHOLE, False),
        ("pass", WHOLE, False),
    ],
)  # fmt: skip
def test_a_helper_is_as_its_callers(
    audited: Audited, profile: str, served: str, full: bool
) -> None:
    found = audited(layer=HELPER.format(profiled=profile, served=served)).serving
    assert found
    assert any(s.match != "full" for s in found) != full, [
        (s.enclosing, s.reason) for s in found
    ]


ONLY_FEW = """
class Experts:
    def apply(self, hidden_states):
        {condition}
            return current_workspace_manager().get_simultaneous({spec})
"""


@pytest.mark.parametrize(
    ("condition", "spec", "match"),
    [
        ("if True:", "((hidden_states.shape[0], 64), torch.float16)", "self"),
        ("if hidden_states.shape[0] <= 64:", FIXED, "none"),
        ("if 64 > hidden_states.shape[0]:", FIXED, "none"),
        ("if hidden_states.shape[0] > 64:", FIXED, "self"),
        ("if not hidden_states.shape[0] > 64:", FIXED, "none"),
        ("if True:", "((8192 - hidden_states.shape[0], 64), torch.float16)", "none"),
    ],
)
def test_the_profile_run_has_the_most_tokens_and_nothing_else(
    audited: Audited, condition: str, spec: str, match: str
) -> None:
    site = serving(audited(layer=ONLY_FEW.format(condition=condition, spec=spec)).sites)
    assert site.match == match, site.reason


def test_a_partial_asks_where_it_is_called(audited: Audited) -> None:
    text = f"""
    from functools import partial
    class Impl:
        def __init__(self, scheduler_config, width):
            self.max_num_batched_tokens = scheduler_config.max_num_batched_tokens
            self.width = width
            self.get = partial(current_workspace_manager().get_simultaneous, {MOST})
        def forward(self, layer, query, attn_metadata):
            return self.get()
    """
    site = verdict(audited, text)
    assert (site.enclosing, site.match) == ("Impl.forward", "none")


def test_a_step_is_a_step_whatever_its_name(audited: Audited) -> None:
    text = layer(STEP).replace("decode", "warmup_decode")
    site = verdict(audited, text)
    assert (site.role, site.match) == ("serving", "none")
