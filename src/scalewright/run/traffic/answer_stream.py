"""An answer as a server of OpenAI's interface streams it: server-sent events, a piece of text in each.

Servers differ: usage comes in the last event with choices, in one without, or never; chats begin with an event that
only has a role; reasoning is in a field of its own; the last event may hold no text. All of that is read here.
"""

from __future__ import annotations

import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from scalewright.run.traffic.http_stream import Response, ServerFailedError, shown

DONE = "[DONE]"
TEXT_KEYS = ("content", "reasoning_content", "reasoning", "text", "tool_calls")
"""Where a choice or its delta holds what was generated."""


@dataclass(slots=True, kw_only=True)
class StreamedChoice:
    """One answer to a request: when its pieces came."""

    times_s: list[float] = field(default_factory=list)
    """By the clock of this process."""
    reason: str = ""


@dataclass(slots=True, kw_only=True)
class StreamedAnswer:
    """Everything that the server said to one request."""

    choices: dict[int, StreamedChoice] = field(default_factory=dict)
    usage: Mapping[str, Any] | None = None

    @property
    def num_prompt(self) -> int | None:
        return _count(self.usage, "prompt_tokens")

    def num_tokens(self, index: int) -> int:
        """As the server counted; where several answers share one count, or there is none, by the pieces."""
        pieces, total = len(self.choices[index].times_s), _count(self.usage, "completion_tokens")
        if total is None:
            return pieces
        of_all = sum(len(choice.times_s) for choice in self.choices.values())
        return total if len(self.choices) == 1 else round(total * pieces / max(of_all, 1))


async def read_answer(response: Response, *, num_answers: int = 1) -> StreamedAnswer:
    """Read a stream to its end. What is no stream of answers, or ends in the middle, is refused."""
    kind = response.headers.get("content-type", "").partition(";")[0].strip()
    if kind != "text/event-stream":
        raise ServerFailedError(f"sent {kind or 'an answer without a type'}, not a stream of events")
    answer, is_done = StreamedAnswer(), False
    async for line in response.lines():
        now_s = time.perf_counter()
        if not line or line.startswith((":", "event:", "id:", "retry:")):
            continue
        if not line.startswith("data:"):
            raise ServerFailedError(f"sent {shown(line)}, which is no event of a stream")
        text = line.removeprefix("data:").strip()
        if text == DONE:
            is_done = True
            break
        _read_event(answer, text, now_s)
    ended = [choice for choice in answer.choices.values() if choice.reason and choice.times_s]
    if len(ended) < num_answers:
        if is_done and answer.choices and all(choice.times_s for choice in answer.choices.values()):
            return answer  # a server that says nothing of the reason
        raise ServerFailedError("ended its stream before the answer was whole" if answer.choices else "sent no token")
    return answer


def _read_event(answer: StreamedAnswer, text: str, now_s: float) -> None:
    try:
        event = json.loads(text)
    except ValueError as error:
        raise ServerFailedError(f"sent {shown(text)}, which is not JSON") from error
    if not isinstance(event, dict):
        raise ServerFailedError(f"sent {shown(text)}, which is no event of a stream")
    if event.get("error") or event.get("object") == "error":
        raise ServerFailedError(f"reported an error in its stream: {shown(error_words(event), most=160)}")
    choices = event.get("choices", [])
    if not isinstance(choices, list) or ("choices" not in event and "usage" not in event):
        raise ServerFailedError(f"sent {shown(text)}, which is no event of a stream")
    if isinstance(event.get("usage"), dict):
        answer.usage = event["usage"]
    for choice in choices:
        if not isinstance(choice, dict):
            raise ServerFailedError(f"sent {shown(text)}, which is no event of a stream")
        _read_choice(answer.choices.setdefault(int(choice.get("index") or 0), StreamedChoice()), choice, now_s)


def _read_choice(streamed: StreamedChoice, choice: Mapping[str, Any], now_s: float) -> None:
    delta = choice.get("delta")
    source = delta if isinstance(delta, dict) else choice
    has_text = any(source.get(key) for key in TEXT_KEYS)
    reason = choice.get("finish_reason")
    # A token may have no text of its own, such as half of a character. An event of a chat's start or end has no token.
    is_empty_token = not reason and "role" not in source and any(key in source for key in TEXT_KEYS)
    if has_text or is_empty_token:
        streamed.times_s.append(now_s)
    if reason:
        streamed.reason = str(reason)
        if not streamed.times_s:  # it ended with its first token, which has no text
            streamed.times_s.append(now_s)


def error_words(body: Any) -> str:
    """What a server says is wrong, in whichever form it says so."""
    if isinstance(body, str):
        try:
            return error_words(json.loads(body))
        except ValueError:
            return body
    if isinstance(body, dict):
        for key in ("error", "message", "detail", "msg"):
            if body.get(key):
                return error_words(body[key])
    if isinstance(body, list) and body:
        return error_words(body[0])
    return str(body)


def _count(usage: Mapping[str, Any] | None, key: str) -> int | None:
    number = None if usage is None else usage.get(key)
    return number if isinstance(number, int) and number >= 0 else None
