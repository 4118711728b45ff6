"""Where a release's Python files are: an installed vLLM, a folder, a wheel, or the cache.

Nothing of vLLM is imported and nothing is fetched, unless `download` is asked for by its word.
"""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
import zipfile
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from wstrace.errors import WstraceError
from wstrace.files import user_cache
from wstrace.plain_files import open_plain
from wstrace.units import human
from wstrace.versions import release_of
from wstrace.vllm import arena

_LARGEST: Final = 1 << 30
# matches: "vllm-0.33.0+cpu-cp38-abi3-manylinux1_x86_64.whl"
_WHEEL: Final = re.compile(r"vllm[_\w]*-([^-]+)-.*\.whl$")
# matches: "__version__ = version = '0.33.0'"
_VERSION: Final = re.compile(r"^(?:__)?version(?:__)? *=.*?['\"]([\w.+]+)['\"]", re.M)
# matches: "Version: 0.33.0"
_METADATA: Final = re.compile(r"^Version: (\S+)$", re.M)


@dataclass(frozen=True)
class VllmTree:
    """The `vllm` package's folder, and its version as far as it says one."""

    root: Path
    version: str


@contextmanager
def vllm_tree(named: str | None, download: bool = False) -> Iterator[VllmTree]:
    """The tree of an audit: `named` is a path, a release, or None for the installed vLLM.

    A wheel's files are unpacked for as long as the context lasts. WstraceError where there is
    no vLLM, or one from before the workspace manager (0.13.0).
    """
    if named is None:
        yield _checked(_installed())
    elif Path(named).exists():
        with _at(Path(named)) as tree:
            yield _checked(tree)
    elif version := _version_named(named):
        yield _checked(VllmTree(_released(version, download), version))
    else:
        raise WstraceError(
            f"There is no {named}.",
            "Give the folder of a vLLM, a wheel, or a release such as 0.33.0.",
        )


def _version_named(text: str) -> str:
    """The one build that the text names, as pip takes it; "" where it names none."""
    release = release_of(text)
    one = release.numbers is not None and not release.unclear
    return release.version if one and "/" not in text else ""


def _installed() -> VllmTree:
    spec = find_spec("vllm")
    places = list(spec.submodule_search_locations or ()) if spec else []
    if not places:
        raise WstraceError(
            "vLLM is not installed here.", "Give one: --vllm FOLDER, --vllm WHEEL or a release."
        )
    root = Path(places[0])
    return VllmTree(root, _version_of(root))


@contextmanager
def _at(path: Path) -> Iterator[VllmTree]:
    if path.is_dir():
        root = path / "vllm" if (path / "vllm").is_dir() else path
        yield VllmTree(root, _version_of(root))
        return
    with tempfile.TemporaryDirectory(prefix="wstrace-audit-") as folder:
        version = unpack(path, Path(folder))
        yield VllmTree(Path(folder) / "vllm", version)


def unpack(wheel: Path, folder: Path) -> str:
    """Take a wheel's Python files and its metadata; the version that it says."""
    try:
        with open_plain(wheel) as file, zipfile.ZipFile(file) as archive:
            wanted = [info for info in archive.infolist() if _wanted(info.filename)]
            if sum(info.file_size for info in wanted) > _LARGEST:
                raise OSError(f"its Python files are larger than {human(_LARGEST)}")
            archive.extractall(folder, wanted)
    except (zipfile.BadZipFile, zlib.error, RuntimeError, OSError) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise WstraceError(f"{wheel} is no wheel: {why}.", "Give a .whl file.") from error
    said = _version_of(folder / "vllm")
    found = _WHEEL.search(wheel.name)
    return said or (found[1] if found else "")


def _wanted(name: str) -> bool:
    python = name.startswith("vllm/") and name.endswith(".py")
    return python or name.endswith(".dist-info/METADATA")


def _version_of(root: Path) -> str:
    """From the metadata beside the package, else from its `_version.py`."""
    for file in sorted(root.parent.glob("vllm*.dist-info/METADATA")):
        found = _METADATA.search(file.read_text("utf-8", "replace") if file.is_file() else "")
        if found:
            return found[1]
    file = root / "_version.py"
    found = _VERSION.search(file.read_text("utf-8", "replace")) if file.is_file() else None
    return found[1] if found else ""


def _checked(tree: VllmTree) -> VllmTree:
    if not (tree.root / arena.FILE).is_file():
        raise WstraceError(
            f"{tree.root} has no vllm/{arena.FILE}.",
            "The workspace manager came with vLLM 0.13.0: give that release or a later one.",
        )
    return tree


def cache_folder(version: str) -> Path:
    """Where a release's Python files are kept."""
    return user_cache() / "wheels" / f"{version}-whole"


def _released(version: str, download: bool) -> Path:
    folder = cache_folder(version)
    if not (folder / "vllm").is_dir():
        if not download:
            raise WstraceError(
                f"vLLM {version} is not in the cache ({folder}).",
                "`--download` fetches its wheel with pip, or give the path of one.",
            )
        _fetch(version, folder)
    return folder / "vllm"


def _fetch(version: str, folder: Path) -> None:
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{version}-") as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--only-binary=:all:", "--dest", scratch, f"vllm=={version}"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        wheel = next(Path(scratch).glob("vllm-*.whl"), None)
        if wheel is None:
            said = (done.stderr or done.stdout).strip().splitlines() or ["it gave no wheel"]
            raise WstraceError(
                f"pip cannot fetch vLLM {version}: {said[-1]}",
                "Give the path of an unpacked vLLM or of a wheel instead.",
            )
        taken = Path(scratch) / "taken"
        unpack(wheel, taken)
        taken.rename(folder)
