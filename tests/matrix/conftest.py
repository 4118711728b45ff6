"""Each test of the matrix runs for each version that WSTRACE_MATRIX names.

`ci` (the default) is four of them, `all` every pinned one, else a comma-separated list.
`@shows(LABEL, since=, until=)` names the line of docs/compatibility.md that a test fills.
"""

from __future__ import annotations

import json
import os
from collections.abc import Generator
from pathlib import Path

import pytest

from tests.matrix.compatibility import applies
from tests.matrix.runs import Run, run_scenarios
from tests.matrix.wheels import CI, PINNED, UnavailableError, sources

RESULTS = "WSTRACE_MATRIX_RESULTS"
_outcomes: dict[str, dict[str, bool]] = {}


def chosen_versions() -> tuple[str, ...]:
    """The versions that this session runs."""
    wanted = os.environ.get("WSTRACE_MATRIX", "ci")
    return {"ci": CI, "all": PINNED}.get(wanted) or tuple(wanted.split(","))


def pytest_configure(config: pytest.Config) -> None:
    line = "shows(label, since, until): the line of docs/compatibility.md that a test fills"
    config.addinivalue_line("markers", line)


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "run" not in metafunc.fixturenames:
        return
    mark = next(metafunc.definition.iter_markers("shows"), None)
    limits = mark.kwargs if mark else {}
    since, until = limits.get("since", "0"), limits.get("until", "99")
    versions = [v for v in chosen_versions() if applies(v, since, until)]
    metafunc.parametrize("run", versions, indirect=True, scope="session")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Under xdist (`--dist loadgroup`) the scenarios of a release run on one worker, once; a
    file without them stays whole, its releases apart from each other."""
    for item in items:
        if Path(__file__).parent in item.path.parents:
            item.add_marker(pytest.mark.xdist_group(_group(item)))


def _group(item: pytest.Item) -> str:
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    if "run" in parameters:
        return str(parameters["run"])
    apart = item.path.parent.name == "differential"
    return f"{item.path.stem} {parameters.get('version', '') if apart else ''}".strip()


@pytest.fixture(scope="session")
def run(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Run:
    """All scenarios, run once against the version of this test."""
    version: str = request.param
    try:
        folder = sources(version)
    except UnavailableError as error:
        pytest.fail(f"vLLM {version} cannot be had: {error}", pytrace=False)
    (done,) = run_scenarios((folder, tmp_path_factory.mktemp(f"vllm-{version}")))
    return done


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    mark = item.get_closest_marker("shows")
    parameters = getattr(getattr(item, "callspec", None), "params", {})
    ran = report.failed or (report.passed and report.when == "call")
    if mark is not None and "run" in parameters and ran:
        line = _outcomes.setdefault(mark.args[0], {})
        version = parameters["run"]
        line[version] = line.get(version, True) and not report.failed
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    if os.environ.get(RESULTS):
        Path(os.environ[RESULTS]).write_text(json.dumps(_outcomes))
