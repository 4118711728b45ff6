"""Wrappers that pose as vLLM's own methods, so that its messages name the layer as before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

Ensure = Callable[[Any, int], Any]
# vLLM 0.32.0 on: get_caller_info() skips frames of this qualified name (before, by `self`), so
# that its message names the layer and not the hook.
CODE_NAME: Final = "WorkspaceManager._ensure_workspace_size"


def pose_as(function: Callable[..., Any], qualname: str) -> None:
    """Give a wrapper the qualified name that vLLM's caller look-up skips (0.32 and later).

    Up to 0.30 the look-up skips frames whose `self` is a WorkspaceManager: the wrappers of
    manager methods therefore name their first parameter `self`.
    """
    function.__code__ = function.__code__.replace(co_qualname=qualname)
