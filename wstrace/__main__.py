"""`python -m wstrace`: the same program as the `wstrace` entry point."""

from __future__ import annotations

if __name__ == "__main__":
    from wstrace.cli.app import main

    main()
