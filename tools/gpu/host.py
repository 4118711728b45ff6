"""Where the engine lies on this host, and the environment that its processes get."""

from __future__ import annotations

import json
import os
import platform
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from tools import ROOT

# A bundle's folders. CuTe's packages stand apart: their wheel has them in a folder of a .pth,
# python_packages up to nvidia-cutlass-dsl 4.5 and dsl_packages from 4.6 (vLLM 0.26).
BUNDLE: Final = (
    "engine",
    "site",
    "cutlass/nvidia_cutlass_dsl/python_packages",
    "cutlass/nvidia_cutlass_dsl/dsl_packages",
)


@dataclass(frozen=True)
class Host:
    """An unpacked bundle (`engine` and `site` in `engine_root`), or a whole environment.

    `wstrace_site` is the folder of `pip install --target`; `caches` holds the compile caches,
    shared by all servers. `extra` is added to the environment of every process last.
    """

    engine_root: Path
    wstrace_site: Path | None
    caches: Path
    python: str = sys.executable
    extra: dict[str, str] = field(default_factory=dict)

    @property
    def path(self) -> str:
        """PYTHONPATH: the engine first, wstrace last, so that vLLM's pins win."""
        folders = [self.engine_root / name for name in BUNDLE]
        found = [str(folder) for folder in folders if folder.is_dir()]
        if self.wstrace_site is not None:
            found.append(str(self.wstrace_site.resolve()))
        added = filter(None, [self.extra.get("PYTHONPATH")])
        return os.pathsep.join([*found, str(ROOT), *added])

    def env(self) -> dict[str, str]:
        """The whole environment, without the caller's `WSTRACE_*`."""
        kept = {k: v for k, v in os.environ.items() if not k.startswith("WSTRACE_")}
        return kept | {
            "PYTHONUNBUFFERED": "1",
            "HF_HUB_OFFLINE": "1",
            "VLLM_NO_USAGE_STATS": "1",
            "VLLM_SERVER_DEV_MODE": "1",
            "VLLM_USE_FLASHINFER_SAMPLER": "0",
            "VLLM_DEEP_GEMM_WARMUP": "skip",
            "TRITON_CACHE_DIR": str(self.caches / "triton"),
            "TORCHINDUCTOR_CACHE_DIR": str(self.caches / "inductor"),
            "VLLM_CACHE_ROOT": str(self.caches / "vllm"),
            **self.extra,
            "PYTHONPATH": self.path,
        }

    def wstrace(self, *arguments: str) -> list[str]:
        """The command line of a wstrace command."""
        return [self.python, "-P", "-m", "wstrace.cli.app", *arguments]

    def serve(self, model: Path) -> list[str]:
        """The command line of `vllm serve`."""
        program = [self.python, "-P", "-m", "vllm.entrypoints.cli.main", "serve"]
        return [*program, str(model), "--load-format", "dummy"]

    def facts(self) -> dict[str, Any]:
        """FACTS: GPU, driver and versions of what is installed, in the engine's environment."""
        lines = _output([self.python, "-c", VERSIONS % (PACKAGES,)], self.env()).splitlines()
        found = json.loads(lines[-1]) if lines else {}
        return found | {"python": platform.python_version(), "gpus": _gpus()}


VERSIONS: Final = """
import json
from importlib.metadata import PackageNotFoundError, version
def of(name):
    try: return version(name)
    except PackageNotFoundError: return None
print(json.dumps({n: found for n in %r if (found := of(n))}))
"""
PACKAGES: Final = ("vllm", "torch", "triton", "wstrace", "wstrace-native")
FACTS: Final = (*PACKAGES, "python", "gpus")


def _gpus() -> list[str]:
    """The GPUs that CUDA_VISIBLE_DEVICES leaves."""
    query = ["nvidia-smi", "--query-gpu=name,memory.total,driver_version"]
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    chosen = ["-i", visible] if visible else []
    return _output([*query, "--format=csv,noheader", *chosen], None).splitlines()


def _output(command: list[str], env: dict[str, str] | None) -> str:
    try:
        done = subprocess.run(
            command, env=env, capture_output=True, text=True, timeout=120, check=False
        )
    except (OSError, subprocess.TimeoutExpired):
        return ""
    return done.stdout.strip()
