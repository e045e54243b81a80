"""A small real server with OpenAI's interface, for tests: HTTP/1.1 over a socket, events at a stated pace.

It knows nothing of Scalewright. What it streams has the form that vLLM, SGLang and `transformers serve` have, and it
can fail as servers do: by a status, by silence, by breaking off, by sending something else.

    with OpenAiServer(gap_s=0.002) as server:
        ... server.url ...
"""

from __future__ import annotations

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, Self

KNOWN = {"model", "prompt", "messages", "max_tokens", "stream", "temperature", "top_p", "seed"}
"""Fields that `transformers serve` accepts; it refuses others, stream_options among them."""
DONE = "[DONE]"
EXTRA = {"stream_options", "ignore_eos", "min_tokens", "top_k", "n"}


@dataclass
class OpenAiServer:
    """One server on a port of its own. `served` holds the body of every request that was answered or refused."""

    port: int = 0
    """0: any that is free."""
    first_s: float = 0.01
    """Before the first token."""
    gap_s: float = 0.002
    """Between two tokens."""
    lists_models: bool = True
    """Else it answers 500 there, as `transformers serve` does before it has a cache of models."""
    fault: str = ""
    """500, 400, hang, garbage, cut, error, html: what it does instead of answering, after `num_good` answers."""
    num_good: int = 0
    api: str = "both"
    """completions, chat or both."""
    is_strict: bool = False
    """Refuses fields that it does not know, as `transformers serve` does."""
    key: str = ""
    sends_usage: bool = True
    tokens_per_event: int = 1
    next_token: Callable[[list[int], int], str] | None = None
    """The text of token number n after a prompt; None: a word."""
    served: list[dict[str, Any]] = field(default_factory=list)
    headers: list[dict[str, str]] = field(default_factory=list)
    num_answered: int = 0
    num_running: int = 0
    most_running: int = 0
    lock: threading.Lock = field(default_factory=threading.Lock)

    def __enter__(self) -> Self:
        server = self

        class Handler(_Handler):
            owner = server

        self._http = ThreadingHTTPServer(("127.0.0.1", self.port), Handler)
        self._http.daemon_threads = True
        self._http.block_on_close = False
        self._done = threading.Event()
        threading.Thread(target=self._http.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._done.set()
        self._http.shutdown()
        self._http.server_close()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._http.server_address[1]}"

    @property
    def fails_now(self) -> bool:
        """The request that the client tries its form with counts as an answer too."""
        return bool(self.fault) and self.num_answered >= self.num_good

    def wait_for_the_end(self) -> None:
        self._done.wait(60.0)


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    owner: OpenAiServer

    def log_message(self, *_: object) -> None:
        pass

    def do_GET(self) -> None:
        if self.path == "/v1/models" and self.owner.lists_models:
            self._json(200, {"object": "list", "data": [{"id": "tiny-random", "object": "model"}]})
        elif self.path == "/v1/models":
            self._send(500, "text/plain", b"Internal Server Error")
        elif self.path == "/metrics":
            running = self.owner.num_running
            page = (
                "# HELP vllm:kv_cache_usage_perc KV-cache usage.\n"
                f'vllm:kv_cache_usage_perc{{engine="0",model_name="tiny"}} {min(running / 16, 1.0)}\n'
                f'vllm:num_requests_running{{engine="0"}} {running}\n'
                'vllm:num_preemptions_total{engine="0"} 3\n'
            )
            self._send(200, "text/plain", page.encode())
        else:
            self._json(404, {"detail": "Not Found"})

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", "0"))))
        owner = self.owner
        with owner.lock:
            owner.served.append(body)
            owner.headers.append(dict(self.headers))
        if owner.key and self.headers.get("Authorization") != f"Bearer {owner.key}":
            return self._json(401, {"error": {"message": "wrong key"}})
        is_chat = self.path == "/v1/chat/completions"
        if self.path not in ("/v1/completions", "/v1/chat/completions") or owner.api not in (
            "both", "chat" if is_chat else "completions"
        ):  # fmt: skip
            return self._json(404, {"detail": "Not Found"})
        unknown = sorted(set(body) - KNOWN)
        if owner.is_strict and (unknown or isinstance(body.get("prompt"), list)):
            return self._json(422, {"detail": f"Unexpected keys in the request: {unknown}"})
        assert set(body) <= KNOWN | EXTRA, body
        if owner.fails_now:
            return self._fail(body, is_chat=is_chat)
        with owner.lock:
            owner.num_running += 1
            owner.most_running = max(owner.most_running, owner.num_running)
        with contextlib.suppress(BrokenPipeError, ConnectionResetError):
            self._stream(self._counted(self._events(body, is_chat=is_chat)))
        return None

    def _counted(self, events: Iterator[tuple[float, str]]) -> Iterator[tuple[float, str]]:
        """The answer is over, for this server, before its client can know."""
        for wait_s, event in events:
            if event == DONE:
                with self.owner.lock:
                    self.owner.num_running -= 1
                    self.owner.num_answered += 1
            yield wait_s, event

    def _events(self, body: dict[str, Any], *, is_chat: bool) -> Iterator[tuple[float, str]]:
        """Waits and events of one answer."""
        owner, num, choices = self.owner, int(body["max_tokens"]), int(body.get("n", 1))
        prompt = body.get("prompt") or body["messages"][0]["content"]
        num_prompt = len(prompt) if isinstance(prompt, list) else len(str(prompt).split())
        wait_s = owner.first_s
        if is_chat:
            yield wait_s, self._event({"index": 0, "delta": {"role": "assistant", "content": ""}}, is_chat=True)
            wait_s = 0.0
        for start in range(0, num, owner.tokens_per_event):
            count = min(owner.tokens_per_event, num - start)
            words = " word" * count
            if owner.next_token is not None:
                words = "".join(owner.next_token(prompt, start + place) for place in range(count))
            for index in range(choices):
                is_last = start + count >= num and not is_chat
                text = {"delta": {"content": words}} if is_chat else {"text": words}
                choice = {"index": index, **text, "finish_reason": "length" if is_last else None}
                yield wait_s if index == 0 else 0.0, self._event(choice, is_chat=is_chat)
            wait_s = owner.gap_s
        if is_chat:  # as SGLang ends a chat: the reason has an event of its own
            yield 0.0, self._event({"index": 0, "delta": {}, "finish_reason": "length"}, is_chat=True)
        if owner.sends_usage and body.get("stream_options", {}).get("include_usage"):
            usage = {"prompt_tokens": num_prompt, "completion_tokens": num * choices}
            yield 0.0, json.dumps({"id": "a", "object": "text_completion", "choices": [], "usage": usage})
        yield 0.0, DONE

    def _event(self, choice: dict[str, Any], *, is_chat: bool) -> str:
        kind = "chat.completion.chunk" if is_chat else "text_completion"
        return json.dumps({"id": "a", "object": kind, "model": "tiny-random", "choices": [choice], "usage": None})

    def _stream(self, events: Iterator[tuple[float, str]]) -> None:
        self.send_response(200)
        self.send_header("Content-Type", "text/event-stream; charset=utf-8")
        self.send_header("Transfer-Encoding", "chunked")
        self.end_headers()
        for wait_s, event in events:
            if wait_s:
                time.sleep(wait_s)
            self._chunk(f"data: {event}\n\n")
        self._chunk("")

    def _chunk(self, text: str) -> None:
        data = text.encode()
        self.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
        self.wfile.flush()

    def _fail(self, body: dict[str, Any], *, is_chat: bool) -> None:
        fault = self.owner.fault
        if fault == "500":
            self._json(500, {"error": {"message": "CUDA out of memory", "type": "InternalServerError"}})
        elif fault == "400":
            self._json(400, {"error": {"message": "the prompt is longer than the context of 16 tokens"}})
        elif fault == "hang":
            self.owner.wait_for_the_end()
        elif fault == "html":
            self._send(200, "text/html", b"<html>Welcome</html>")
        else:
            first = list(self._events(body, is_chat=is_chat))[:2]
            ends = {
                "garbage": [(0.0, '{"choices": [{"text": "wor')],
                "error": [(0.0, json.dumps({"error": {"message": "the engine died", "code": 500}}))],
                "cut": [],
            }
            self._stream(iter([*first, *ends[fault]]))
        self.close_connection = True

    def _json(self, status: int, body: dict[str, Any]) -> None:
        self._send(status, "application/json", json.dumps(body).encode())

    def _send(self, status: int, kind: str, data: bytes) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)
