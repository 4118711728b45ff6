"""The reserve config that the planner makes of a session, for the report."""

from __future__ import annotations

from wstrace.analysis.session import Session
from wstrace.errors import WstraceError
from wstrace.reserve.from_session import plan_session
from wstrace.reserve.plan import Wishes
from wstrace.reserve.schema import ReserveConfig


def planned(session: Session) -> tuple[ReserveConfig | None, tuple[str, ...]]:
    """The config and what can still fail in spite of it; (None, ()) where none can be made."""
    try:
        made = plan_session(session, Wishes())
    except WstraceError:
        return None, ()
    return made.config, made.can_fail
