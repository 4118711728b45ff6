"""Taking the hooks of an attached recorder off for a while, and putting them back.

For measurements with and without the recorder in one engine. Only between steps: what
happens while the hooks are off is not recorded, and a growth is seen at the next request.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from contextlib import contextmanager

from wstrace.recorder.state.process import Live


@contextmanager
def detached(live: Live) -> Iterator[None]:
    """Inside the block vLLM runs its own methods; afterwards the same wrappers run again.

    A method that somebody else wrapped since keeps its wrapper, ours below it included.
    """
    hooks = live.hooks
    patches = list(hooks.patches)
    hooks.remove()
    try:
        yield
    finally:
        for patch in patches:
            if inspect.getattr_static(patch.owner, patch.name, None) is patch.original:
                setattr(patch.owner, patch.name, patch.wrapper)
        hooks.patches = [*patches, *hooks.patches]
