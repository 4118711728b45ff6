"""Two releases side by side: what is new, gone, better and worse reserved."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import commands
from tests.unit.audit.test_roles_and_matches import FIXED, MOST, layer, request
from wstrace.audit.upgrade import upgrade
from wstrace.audit.whole import audit

Package = Callable[..., Path]
wstrace = partial(commands.wstrace, "audit")


@pytest.fixture
def two(tmp_path: Path, package: Package) -> Callable[..., tuple[Path, Path]]:
    """Two packages, with a layer each."""

    def made(before: str, after: str) -> tuple[Path, Path]:
        first = package(layer=before).rename(tmp_path / "first")
        (tmp_path / "a").mkdir()
        first.rename(tmp_path / "a" / "vllm")
        return tmp_path / "a" / "vllm", package(layer=after)

    return made


RESERVED = layer(MOST, profiled=request(MOST))
NOT_RESERVED = layer(MOST)
OTHER = RESERVED.replace("def decode", "def prefill").replace("self.decode", "self.prefill")


def test_a_reservation_that_came_and_one_that_went(
    two: Callable[..., tuple[Path, Path]],
) -> None:
    old, new = (audit(root, "") for root in two(NOT_RESERVED, RESERVED))
    better, worse = upgrade(old, new), upgrade(new, old)
    assert [pair.after.match for pair in better.fixed] == ["full"]
    assert (better.added, better.lost, better.worse, better.unreserved) == ((), (), (), ())
    assert [site.match for site in worse.unreserved] == ["none"]


def test_a_new_function_is_added_and_the_old_one_gone(
    two: Callable[..., tuple[Path, Path]],
) -> None:
    old, new = (audit(root, "") for root in two(RESERVED, OTHER))
    found = upgrade(old, new)
    assert [site.enclosing for site in found.added] == ["Impl.prefill"]
    assert [site.enclosing for site in found.lost] == ["Impl.decode"]
    assert found.unreserved == ()


def test_a_file_that_moved_is_no_change(two: Callable[..., tuple[Path, Path]]) -> None:
    before, after = two(RESERVED, RESERVED)
    (after / "layer.py").rename(after / "moved.py")
    found = upgrade(audit(before, ""), audit(after, ""))
    assert (found.added, found.lost, found.worse) == ((), (), ())


def test_the_command_compares_and_fails_a_worse_release(
    two: Callable[..., tuple[Path, Path]],
) -> None:
    worse, better = two(NOT_RESERVED, RESERVED)
    shown = wstrace(str(better), str(worse), "--check")
    assert shown.returncode == 1, shown.stderr
    assert "### Worse reserved" in shown.stdout
    assert wstrace(str(worse), str(better), "--check").returncode == 0
    told = json.loads(wstrace(str(worse), str(better), "--format", "json").stdout)
    assert [site["before"] for site in told["fixed"]] == ["none"]


def test_only_changed_files_are_audited(package: Package) -> None:
    root = package(layer=NOT_RESERVED, other=layer(FIXED, constructed=request(FIXED)))
    bad, good = str(root / "layer.py"), str(root / "other.py")
    assert wstrace("--changed", "--check", bad, good).returncode == 1
    shown = wstrace("--changed", "--check", good)
    assert shown.returncode == 0, shown.stderr
    assert "layer.py" not in shown.stdout
    assert wstrace("--changed", "--check", "README.md").returncode == 0


def test_json_has_the_fields_of_its_version(package: Package) -> None:
    root = package(layer=RESERVED)
    told = json.loads(wstrace("--vllm", str(root), "--format", "json").stdout)
    assert (told["version"], told["vllm"]) == (1, None)
    wanted = {"file", "line", "enclosing", "method", "role", "match", "reason", "matched_by"}
    for site in told["sites"]:
        assert site.keys() >= wanted | {"formula", "drivers"}
    serving = next(s for s in told["sites"] if s["role"] == "serving")
    assert serving["match"] == "full"
    assert serving["matched_by"] == [
        f"{s['file']}:{s['line']}" for s in told["sites"] if s["role"] == "reservation"
    ]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--vllm", "no/such/folder"), "There is no no/such/folder."),
        (("--vllm", "0.33.x"), "There is no 0.33.x."),
        (("--vllm", "0.1.2"), "not in the cache"),
        (("only-one",), "two vLLMs"),
    ],
)
def test_a_mistake_is_two_lines(
    argv: tuple[str, ...], said: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    shown = wstrace(*argv)
    assert shown.returncode == 2
    assert said in shown.stderr
    assert len(shown.stderr.splitlines()) == 2


def test_a_folder_without_the_manager_is_refused(tmp_path: Path) -> None:
    (tmp_path / "vllm").mkdir()
    shown = wstrace("--vllm", str(tmp_path))
    assert shown.returncode == 2
    assert "workspace.py" in shown.stderr


def test_a_wheel_is_read_without_being_installed(package: Package, tmp_path: Path) -> None:
    root = package(layer=RESERVED)
    wheel = tmp_path / "vllm-0.99.1-cp38-abi3-linux_x86_64.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        for file in root.rglob("*.py"):
            archive.write(file, Path("vllm") / file.relative_to(root))
        archive.writestr("vllm-0.99.1.dist-info/METADATA", "Name: vllm\nVersion: 0.99.1\n")
    told = json.loads(wstrace("--vllm", str(wheel), "--format", "json").stdout)
    assert told["vllm"] == "0.99.1"
    assert [s["match"] for s in told["sites"] if s["role"] == "serving"] == ["full"]
    broken = tmp_path / "broken.whl"
    broken.write_text("no archive")
    shown = wstrace("--vllm", str(broken))
    assert (shown.returncode, len(shown.stderr.splitlines())) == (2, 2)


def test_a_file_that_cannot_be_parsed_is_named(package: Package) -> None:
    root = package(layer=NOT_RESERVED, broken="def f(:\n    get_simultaneous(")
    shown = wstrace("--vllm", str(root))
    assert shown.returncode == 0, shown.stderr
    assert "Impl.decode" in shown.stdout
    assert "not read, no Python of today: vllm/broken.py" in shown.stdout
