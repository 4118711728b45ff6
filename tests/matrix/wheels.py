"""Sources of released vLLM wheels: downloaded once with pip, only a few .py files kept.

The cache is `${XDG_CACHE_HOME:-~/.cache}/wstrace/wheels/VERSION/`, laid out as in the wheel.
A wheel is about 300 MB and is deleted once its files are taken out of it.
"""

from __future__ import annotations

import fcntl
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

from wstrace.files import user_cache

PINNED = (
    "0.13.0",
    "0.16.0",
    "0.18.1",
    "0.20.2",
    "0.24.0",
    "0.26.0",
    "0.27.1",
    "0.28.0",
    "0.29.0",
    "0.30.0",
    "0.31.0",
    "0.32.0",
    "0.33.0",
)
CI = ("0.13.0", "0.20.2", "0.28.0", "0.33.0")
NEWEST = 3
KEPT = (
    "vllm/envs.py",
    "vllm/utils/math_utils.py",
    "vllm/utils/mem_constants.py",
    "vllm/utils/mem_utils.py",
    "vllm/model_executor/layers/fused_moe/moe_permute_unpermute.py",
    "vllm/v1/core/sched/output.py",
    "vllm/v1/worker/gpu/model_runner.py",
    "vllm/v1/worker/gpu/warmup.py",
    "vllm/v1/worker/gpu_model_runner.py",
    "vllm/v1/worker/gpu_worker.py",
    "vllm/v1/worker/ubatching.py",
    "vllm/v1/worker/worker_base.py",
    "vllm/v1/worker/workspace.py",
)
OWN_TESTS = Path("tests/v1/worker/test_workspace.py")
CONFIG = "vllm/config/"
CHANGES = "future.json"
ESSENTIAL = (
    "vllm/config/vllm.py",
    "vllm/utils/mem_utils.py",
    "vllm/v1/worker/ubatching.py",
    "vllm/v1/worker/workspace.py",
)


Changes = dict[str, dict[str, str]]


def changes(sources: Path) -> Changes:
    """What an edited copy of vLLM renamed and moved; nothing in a released one."""
    file = sources / CHANGES
    found: Changes = json.loads(file.read_text()) if file.is_file() else {}
    return {"renamed": {}, "modules": {}} | found


class UnavailableError(Exception):
    """pip could not give what was asked: no network, or no such version."""


def cache_folder() -> Path:
    """Where the extracted sources lie."""
    return user_cache() / "wheels"


def sources(version: str) -> Path:
    """The folder with the kept files of this version; downloads the wheel if need be.

    Raises UnavailableError with pip's last lines when it cannot be had.
    """
    folder = cache_folder() / version
    with _alone(folder):
        if not all((folder / name).is_file() for name in ESSENTIAL):
            _download(version, folder)
    return folder


def newest(count: int = NEWEST) -> tuple[str, ...]:
    """The newest released versions, from `pip index versions`, oldest first."""
    text = _pip("index", "versions", "vllm")
    listed = re.search(r"^Available versions: (.*)$", text, re.MULTILINE)
    if listed is None:
        raise UnavailableError("pip index names no version of vllm")
    released = [v for v in listed[1].split(", ") if re.fullmatch(r"\d+(\.\d+)+", v)]
    return tuple(reversed(released[:count]))


def python_files(version: str) -> Path:
    """The folder with all of this version's Python files, 30 MB; downloaded once, as `sources`.

    Raises UnavailableError with pip's last lines when it cannot be had.
    """
    folder = cache_folder() / f"{version}-whole"
    with _alone(folder):
        if not (folder / "vllm").is_dir():
            _download(version, folder, _python)
    return folder


def own_tests(version: str) -> Path:
    """vLLM's own tests of its workspace manager: a wheel has none, the sdist (45 MB) has.

    pip would build the package's metadata too, for which vLLM's build tools are not here; what
    it unpacked before that failed is kept. Raises UnavailableError where there is no such file.
    """
    kept = cache_folder() / f"{version}-tests" / OWN_TESTS.name
    with _alone(kept.parent), tempfile.TemporaryDirectory() as scratch:
        if not kept.is_file():
            why = ""
            try:
                _pip(
                    "download", "--quiet", "--no-deps", "--no-binary=:all:", "--no-clean",
                    "--no-build-isolation", "--dest", scratch, f"vllm=={version}",
                    environ={**os.environ, "TMPDIR": scratch},
                )  # fmt: skip
            except UnavailableError as error:
                why = str(error)
            (found, *_) = [*Path(scratch).glob(f"*/*/{OWN_TESTS}"), None]
            if found is None:
                raise UnavailableError(f"{OWN_TESTS} of vLLM {version} cannot be had: {why}")
            kept.parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(found, kept)
    return kept


@contextmanager
def _alone(folder: Path) -> Iterator[None]:
    """One process at a time: a wheel that two tests ask for is downloaded once."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    with (folder.parent / f".{folder.name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _python(name: str) -> bool:
    return name.startswith("vllm/") and name.endswith(".py")


def _kept(name: str) -> bool:
    """The matrix's files, vLLM's config, and METADATA: it says which version this is."""
    config = name.startswith(CONFIG) and name.endswith(".py")
    return config or name in KEPT or name.endswith(".dist-info/METADATA")


def _download(version: str, folder: Path, wanted: Callable[[str], bool] = _kept) -> None:
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as scratch:
        _pip(
            "download", "--quiet", "--no-deps", "--only-binary=:all:",
            "--dest", scratch, f"vllm=={version}",
        )  # fmt: skip
        (wheel,) = Path(scratch).glob("vllm-*.whl")
        taken = Path(scratch) / "sources"
        _take(wheel, taken, wanted)
        shutil.rmtree(folder, ignore_errors=True)
        taken.rename(folder)


def _take(wheel: Path, into: Path, wanted: Callable[[str], bool]) -> None:
    with zipfile.ZipFile(wheel) as archive:
        for name in archive.namelist():
            if wanted(name):
                archive.extract(name, into)


def _pip(*arguments: str, environ: Mapping[str, str] | None = None) -> str:
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environ)
    if done.returncode:
        last = "\n".join((done.stderr or done.stdout).strip().splitlines()[-3:])
        raise UnavailableError(f"`pip {' '.join(arguments)}` failed:\n{last}")
    return done.stdout


if __name__ == "__main__":
    try:
        print(",".join(dict.fromkeys((*PINNED, *newest()))))
    except UnavailableError as error:
        sys.exit(f"The newest versions of vLLM cannot be listed: {error}")
