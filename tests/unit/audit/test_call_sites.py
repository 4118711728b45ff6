"""Requests are found however the method is reached."""

from __future__ import annotations

import pytest

from tests.unit.audit.conftest import Audited

SPEC = "((8, 4), torch.float32)"


def body(*lines: str) -> str:
    return "\n".join(["def forward(x, metadata):", *(f"    {line}" for line in lines)])


@pytest.mark.parametrize(
    "lines",
    [
        (f"return current_workspace_manager().get_simultaneous({SPEC})",),
        (
            "manager = current_workspace_manager()",
            f"manager.get_simultaneous({SPEC})[0].fill_(0)",
        ),
        ("get = current_workspace_manager().get_simultaneous", f"return get({SPEC})"),
        (
            "get = getattr(current_workspace_manager(), 'get_simultaneous')",
            f"return get({SPEC})",
        ),
        (f"return getattr(current_workspace_manager(), 'get_simultaneous')({SPEC})",),
        (
            "from functools import partial",
            f"return partial(current_workspace_manager().get_simultaneous, {SPEC})",
        ),
        (f"specs = [{SPEC}]", "return current_workspace_manager().get_simultaneous(*specs)"),
        (
            "from operator import methodcaller",
            f"return methodcaller('get_simultaneous', {SPEC})(current_workspace_manager())",
        ),
        (
            "manager = current_workspace_manager()",
            f"return WorkspaceManager.get_simultaneous(manager, {SPEC})",
        ),
        (f"return (lambda: current_workspace_manager().get_simultaneous({SPEC}))()",),
        (
            "from functools import partial",
            f"get = partial(current_workspace_manager().get_simultaneous, {SPEC})",
            "return get()",
        ),
    ],
)
def test_a_request_is_found_with_its_bytes(audited: Audited, lines: tuple[str, ...]) -> None:
    (site,) = audited(layer=body(*lines)).sites
    assert (site.enclosing, site.method) == ("forward", "get_simultaneous")
    assert site.formula == "256"  # 8 * 4 * 4 = 128, rounded up


def test_a_method_kept_on_self(audited: Audited) -> None:
    text = f"""
    class Layer:
        def __init__(self):
            self.scratch = current_workspace_manager().get_simultaneous
        def forward(self, x, metadata):
            return self.scratch({SPEC})
    """
    (site,) = audited(layer=text).sites
    assert site.enclosing == "Layer.forward"


@pytest.mark.parametrize(
    ("text", "where"),
    [
        (
            f"scratch = lambda: current_workspace_manager().get_simultaneous({SPEC})\n"
            "def forward(x, metadata):\n    return scratch()",
            "scratch",
        ),
        (
            f"class Layer:\n    scratch = lambda self: self.m.get_simultaneous({SPEC})\n"
            "    def forward(self, x, metadata):\n        return self.scratch()",
            "Layer.scratch",
        ),
        (
            "get = current_workspace_manager().get_simultaneous\n"
            f"def forward(x, metadata):\n    return get({SPEC})",
            "forward",
        ),
        (
            "class Layer:\n    get = current_workspace_manager().get_simultaneous\n"
            f"    def forward(self, x, metadata):\n        return self.get({SPEC})",
            "Layer.forward",
        ),
    ],
)
def test_a_method_that_the_module_or_the_class_keeps(
    audited: Audited, text: str, where: str
) -> None:
    (site,) = audited(layer=text).sites
    assert (site.enclosing, site.formula) == (where, "256")
    assert (site.role, site.match) == ("serving", "none")


@pytest.mark.parametrize(
    "lines",
    [
        ("return run(current_workspace_manager().get_simultaneous)",),
        ("return current_workspace_manager().get_simultaneous",),
        ("ways = {'a': current_workspace_manager().get_simultaneous}", "return ways['a'](x)"),
        ("get, n = current_workspace_manager().get_simultaneous, 1", "return get(x)"),
    ],
)
def test_a_method_that_is_handed_on_is_a_request_of_unknown_bytes(
    audited: Audited, lines: tuple[str, ...]
) -> None:
    (site,) = audited(layer=body(*lines)).sites
    assert (site.enclosing, site.role, site.match) == ("forward", "serving", "none")
    assert site.formula is None
    assert site.stopped


@pytest.mark.parametrize(
    ("scratch", "call"),
    [
        ("def scratch(specs):\n    return manager().get_simultaneous(*specs)", "[{0}, {0}]"),
        ("def scratch(a, b):\n    return manager().get_simultaneous(a, b)", "{0}, {0}"),
        ("def scratch(a, b):\n    return manager().get_simultaneous(a, b)", "{0}, b={0}"),
        ("def scratch(m, *specs):\n    return m.get_simultaneous(*specs)", "x, {0}, {0}"),
    ],
)
def test_callers_of_any_function_that_only_hands_specs_on(
    audited: Audited, scratch: str, call: str
) -> None:
    text = f"{scratch}\ndef forward(x, metadata):\n    return scratch({call.format(SPEC)})"
    found = {s.enclosing: s for s in audited(layer=text).sites}
    assert found["forward"].through == "scratch"
    assert found["forward"].formula == "512"


def test_callers_of_a_function_that_only_hands_specs_on(audited: Audited) -> None:
    text = f"""
    def scratch(*specs):
        return current_workspace_manager().get_simultaneous(*specs)
    class Layer:
        def forward(self, x, metadata):
            return scratch({SPEC}, {SPEC})
    """
    found = {s.enclosing: s for s in audited(layer=text).sites}
    assert set(found) == {"scratch", "Layer.forward"}
    assert found["Layer.forward"].through == "scratch"
    assert found["Layer.forward"].formula == "512"


def test_an_inner_function_has_its_whole_name(audited: Audited) -> None:
    text = f"""
    def make_warmup():
        def _warmup(n):
            return current_workspace_manager().get_simultaneous({SPEC})
        return _warmup
    """
    (site,) = audited(layer=text).sites
    assert (site.enclosing, site.role) == ("make_warmup._warmup", "warmup")


def test_a_persistent_buffer_is_a_request_of_a_helper(audited: Audited) -> None:
    text = """
    def locks(device):
        return current_workspace_manager().get_persistent("locks", (64,), torch.int32)
    class Layer:
        def forward(self, x):
            return locks(x.device)
    """
    (site,) = audited(layer=text).sites
    assert (site.method, site.role, site.match) == ("get_persistent", "helper", "self")


def test_the_manager_itself_asks_nobody(audited: Audited) -> None:
    assert audited().sites == ()
