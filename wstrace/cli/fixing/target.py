"""Where a server's command will answer, read from its own options."""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final
from urllib.parse import urlsplit

from wstrace.errors import WstraceError
from wstrace.exercise.client import KEY_VARIABLE, Client
from wstrace.units import count_of
from wstrace.vllm.command_line import config_words, option, with_config

# vLLM 0.13.0 to 0.33.0: `vllm serve` listens on all addresses, port 8000, unless told.
PORT: Final = 8000
EVERYWHERE: Final = ("0.0.0.0", "::", "")
CONNECT_SECONDS: Final = 2.0


@dataclass(frozen=True)
class Target:
    """The server's URL, and the key that it asks of its clients (None: from VLLM_API_KEY)."""

    url: str
    key: str | None = None

    def client(self) -> Client:
        """A client of it. Raises WstraceError for a URL that is not http(s)."""
        return Client(self.url, self.key)

    def refuse_taken(self) -> None:
        """WstraceError where somebody listens there already: it would be asked instead."""
        parts = urlsplit(self.url)
        try:
            with socket.create_connection(
                (parts.hostname or "", parts.port or PORT), CONNECT_SECONDS
            ):
                pass
        except OSError:
            return
        raise WstraceError(
            f"Something listens at {self.url} already.",
            "Stop it, or give the command another --port.",
        )


def target_of(cmd: Sequence[str], url: str | None) -> Target:
    """Where `cmd` serves: `url` where it is given, else by its --host and --port, also where
    they stand in its --config.

    Raises WstraceError for a port that is no number, and for a socket without a URL.
    """
    words = with_config(cmd, config_words(cmd))
    if url is None and option(words, "--uds") is not None:
        raise WstraceError(
            "The command serves on a Unix socket.", "Give it a --port for `wstrace fix`."
        )
    keys = option(words, "--api-key")
    key = keys if keys is not None else os.environ.get(KEY_VARIABLE)
    if url is not None:
        return Target(url, key)
    port = option(words, "--port") or str(PORT)
    if not 0 < (count_of(port) or 0) < 1 << 16:
        raise WstraceError(
            f"The command's --port is {port[:40]}.", "Give a number, 1 to 65535."
        )
    host = option(words, "--host") or ""
    named = "127.0.0.1" if host in EVERYWHERE else f"[{host}]" if ":" in host else host
    scheme = "https" if option(words, "--ssl-certfile") else "http"
    return Target(f"{scheme}://{named}:{port}", key)
