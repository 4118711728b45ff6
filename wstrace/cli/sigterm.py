"""SIGTERM as the end of a command that cleans up."""

from __future__ import annotations

import signal

from wstrace.errors import ended_by


def heed_sigterm() -> None:
    """From here on SIGTERM leaves the command as an exit does: what it began is cleaned up."""
    signal.signal(signal.SIGTERM, _leave)


def _leave(number: int, frame: object) -> None:
    raise SystemExit(ended_by(number))
