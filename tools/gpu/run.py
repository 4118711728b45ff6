"""Run scenarios on this machine's GPU, check them, print the table, pack the results.

    scripts/gpu run --engine /opt/vllm-0.21.0 --wstrace SITE --scenario a,overhead --out DIR

Standard library and wstrace only; see docs/gpu.md.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from pathlib import Path


def parse(arguments: Sequence[str] | None = None) -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(
        prog="scripts/gpu run", description=(__doc__ or "").split("\n")[0]
    )
    parser.add_argument(
        "--engine", type=Path, default=Path("/opt/vllm"), help="unpacked bundle"
    )
    parser.add_argument("--wstrace", type=Path, help="folder of pip install --target")
    parser.add_argument("--scenario", default="a", help="names of docs/gpu.md, by comma")
    parser.add_argument("--out", type=Path, default=Path("gpu-results"), help="results")
    parser.add_argument("--work", type=Path, default=Path("/tmp/wstrace-gpu"), help="scratch")
    parser.add_argument("--deadline", type=float, default=540.0, help="seconds for everything")
    parser.add_argument("--share", type=float, default=0.2, help="GPU memory of one server")
    parser.add_argument("--caches", type=Path, help="packed compile caches of an earlier run")
    parser.add_argument("--pack-caches", action="store_true", help="pack them at the end")
    parser.add_argument("--cpu-rehearsal", action="store_true", help="a and overhead on a CPU")
    parser.add_argument("--check", type=Path, help="only check this unpacked result again")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> int:
    """Returns 0 when every claim that was reached held, 1 when one failed, 3 when none was
    reached, 2 for a wrong command line."""
    options = parse(arguments)
    sites = [options.engine / "engine", options.engine / "site", options.wstrace]
    sys.path[:0] = [str(path.resolve()) for path in sites if path is not None and path.is_dir()]
    try:
        from tools.gpu.session import check_again, run_session
        from wstrace.errors import WstraceError
    except ModuleNotFoundError as error:
        hint = "Give what `scripts/gpu prepare` made: --wstrace SITE."
        print(f"gpu run: {error}.\n{hint}", file=sys.stderr)
        return 2
    try:
        return check_again(options.check) if options.check is not None else run_session(options)
    except WstraceError as error:
        print(f"gpu run: {error.message}\n{error.hint}", file=sys.stderr)
        return error.exit_code


if __name__ == "__main__":
    sys.exit(main())
