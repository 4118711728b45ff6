"""A small client of vLLM's HTTP server: standard library only, bounded in time."""

from __future__ import annotations

import http.client
import json
import os
import time
import urllib.error
import urllib.request
from dataclasses import dataclass
from ipaddress import ip_address
from typing import Any, Final
from urllib.parse import urlsplit

from wstrace.errors import WstraceError
from wstrace.exercise.corners import Call

MAX_BODY: Final = 1 << 20
# vLLM 0.13.0 to 0.33.0: envs.py, the API key that `vllm serve` asks of its clients.
KEY_VARIABLE: Final = "VLLM_API_KEY"


@dataclass(frozen=True)
class Answer:
    """HTTP status (0: none came), seconds it took, and the start of an error's text."""

    status: int
    seconds: float
    text: str = ""

    @property
    def ok(self) -> bool:
        """True for 200."""
        return self.status == 200


@dataclass(frozen=True)
class Model:
    """A served model: its name and its max_model_len in tokens."""

    name: str
    max_model_len: int


class _NoRedirect(urllib.request.HTTPRedirectHandler):
    """Load goes to the server that was named and to no other."""

    def redirect_request(self, *args: Any, **kwargs: Any) -> None:
        """Nothing is followed: the caller sees the 3xx."""


def _host(url: str) -> str | None:
    """The host of an http(s) URL; None for another scheme, a bad address or a bad port."""
    try:
        parts = urlsplit(url)
        usable = parts.scheme in ("http", "https") and parts.port != 0
    except ValueError:
        return None
    return parts.hostname if usable else None


class Client:
    """Calls one server. Raises WstraceError for a URL that is not http(s).

    Without a `key` it comes from the environment variable VLLM_API_KEY, never from the command
    line of a client.
    """

    def __init__(self, url: str, key: str | None = None) -> None:
        host = _host(url)
        if host is None:
            raise WstraceError(
                f"Not a server's URL: {url!r}.", "Write it as http://127.0.0.1:8000."
            )
        self.base = url.rstrip("/").removesuffix("/v1")
        self._key = key
        proxy = urllib.request.ProxyHandler({} if _is_local(host) else None)
        self._opener = urllib.request.build_opener(proxy, _NoRedirect())

    def wait(self, seconds: float) -> None:
        """Return once /health answers 200, or when `seconds` have passed."""
        end = time.monotonic() + seconds
        while time.monotonic() < end and not self.healthy(max(end - time.monotonic(), 0.1)):
            time.sleep(min(0.5, max(end - time.monotonic(), 0.0)))

    def model(self, wanted: str | None, seconds: float) -> Model:
        """The model to ask: `wanted`, else the first that is served.

        Raises WstraceError (exit 2) when nothing answers, or not as vLLM does.
        """
        answer, body = self._send("/v1/models", None, seconds)
        if not answer.ok:
            raise self._silent(answer)
        return _choose(self.base, _models(self.base, body), wanted)

    def _silent(self, answer: Answer) -> WstraceError:
        if answer.status in (401, 403):
            return WstraceError(
                f"{self.base} wants a key (HTTP {answer.status}).",
                f"Set {KEY_VARIABLE} in the environment.",
            )
        what = f"HTTP {answer.status}" if answer.status else answer.text
        return WstraceError(
            f"{self.base}/v1/models does not answer: {what}.",
            "Start the server, wait until /health is 200, and check the port.",
        )

    def complete(self, model: Model, call: Call, seconds: float) -> Answer:
        """One completion over token ids, greedy, of exactly `max_tokens` tokens."""
        request = {
            "model": model.name,
            "prompt": list(call.prompt),
            "max_tokens": call.max_tokens,
            "temperature": 0,
            "ignore_eos": True,
        }
        return self._send("/v1/completions", request, seconds)[0]

    def healthy(self, seconds: float = 5.0) -> bool:
        """True while /health is 200: a dead engine answers 503, or nothing."""
        return self._send("/health", None, seconds)[0].ok

    def _send(self, path: str, request: Any, seconds: float) -> tuple[Answer, bytes]:
        data = None if request is None else json.dumps(request).encode()
        sent = urllib.request.Request(self.base + path, data, _headers(self._key))
        start = time.monotonic()
        try:
            with self._opener.open(sent, timeout=seconds) as reply:
                status, body, text = reply.status, reply.read(MAX_BODY), ""
        except urllib.error.HTTPError as error:
            with error:
                status, body, text = error.code, b"", _text(error.read(2000))
        except (OSError, http.client.HTTPException) as error:
            reason = getattr(error, "reason", error)
            status, body, text = 0, b"", str(reason) or type(reason).__name__
        return Answer(status, time.monotonic() - start, text), body


def _is_local(host: str) -> bool:
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"


def _headers(given: str | None) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    key = given or os.environ.get(KEY_VARIABLE)
    return headers | ({"Authorization": f"Bearer {key}"} if key else {})


def _text(body: bytes) -> str:
    """The message of an error body, on one line."""
    text = body.decode(errors="replace")
    try:
        found = json.loads(text)
        text = str(found.get("error", found).get("message", text))
    except (ValueError, AttributeError):
        pass
    return " ".join(text.split())[:200]


def _models(base: str, body: bytes) -> list[dict[str, Any]]:
    try:
        models = [m for m in json.loads(body)["data"] if isinstance(m["id"], str)]
    except (ValueError, KeyError, TypeError):
        models = []
    if not models:
        raise WstraceError(f"{base}/v1/models lists no model.", "Is it a vLLM server?")
    return models


def _choose(base: str, models: list[dict[str, Any]], wanted: str | None) -> Model:
    names = [str(m["id"]) for m in models]
    if wanted is not None and wanted not in names:
        raise WstraceError(
            f"{base} does not serve {wanted!r}.", f"It serves {', '.join(names)}."
        )
    lengths = [m["max_model_len"] for m in models if isinstance(m.get("max_model_len"), int)]
    if not lengths:
        raise WstraceError(f"{base} does not say max_model_len.", "Is it a vLLM server?")
    return Model(wanted or names[0], max(lengths))
