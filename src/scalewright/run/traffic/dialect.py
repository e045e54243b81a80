"""What a server understands of OpenAI's interface, tried out with one token before anything is measured.

vLLM, SGLang and TensorRT-LLM take prompts as token ids and the fields `ignore_eos` and `min_tokens`, with which answers
have the length that is asked for. Others refuse fields that they do not know, such as `transformers serve`, which also
refuses `stream_options`. The richest form that the server accepts is used, and what is missing is noted.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

from scalewright.errors import ConfigError
from scalewright.run.traffic.answer_stream import StreamedAnswer, error_words, read_answer
from scalewright.run.traffic.http_stream import Address, Connection, ServerFailedError, connect, get_text, shown
from scalewright.workload.generate_run import GenerateRun, SamplingSettings, ServerTarget
from scalewright.workload.request_plan import (
    NUM_PLAIN_IDS,
    PlannedRequest,
    RequestPlan,
    made_up_text,
    made_up_tokens,
)

KEY_STATUSES = (401, 403)
REFUSED = (400, 404, 405, 413, 415, 422)
"""The server does not accept the request as it is: another form of it may do."""
BUSY = (429, 503)
PATHS = {"completions": "/v1/completions", "chat": "/v1/chat/completions"}


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """The form of a request that the server accepts."""

    model: str
    api: Literal["completions", "chat"]
    by_tokens: bool
    """Prompts are token ids, so that they have exactly the length that is asked for."""
    fixes_length: bool
    """`ignore_eos` and `min_tokens` are accepted."""
    counts_usage: bool
    """`stream_options` is accepted, and the server says how many tokens it read and wrote."""

    @property
    def path(self) -> str:
        return PATHS[self.api]

    def body(
        self, plan: RequestPlan, request: PlannedRequest, sampling: SamplingSettings, *, vocab: int | None
    ) -> dict[str, Any]:
        """The JSON document of one request."""
        num = request.num_answer
        body: dict[str, Any] = {"model": self.model, "max_tokens": num, "stream": True}
        if self.api == "chat":
            body["messages"] = [{"role": "user", "content": made_up_text(plan, request)}]
        elif self.by_tokens:
            body["prompt"] = list(made_up_tokens(plan, request, vocab=min(vocab or NUM_PLAIN_IDS, NUM_PLAIN_IDS)))
        else:
            body["prompt"] = made_up_text(plan, request)
        body |= {"temperature": sampling.temperature, "top_p": sampling.top_p_frac}
        if sampling.top_k:
            body["top_k"] = sampling.top_k
        if plan.num_answers > 1:
            body["n"] = plan.num_answers
        if self.counts_usage:
            body["stream_options"] = {"include_usage": True}
        if self.fixes_length:
            body |= {"ignore_eos": True, "min_tokens": num}
        return body

    def notes(self) -> list[str]:
        """What is less exact than it could be."""
        notes = []
        if not self.by_tokens:
            notes.append("prompts are sent as text: their length in tokens is about the one that was asked for")
        if not self.fixes_length:
            notes.append("the server does not accept ignore_eos: answers may end before the length that was asked for")
        if not self.counts_usage:
            notes.append("the server does not count its tokens: each piece of its stream is counted as one")
        return notes


def address_of(target: ServerTarget) -> Address:
    """The address, with the key of the environment; it is never written or shown."""
    key = os.environ.get(target.key_variable, "")
    if not key.isprintable() or not key.isascii():
        raise ConfigError(f"the variable {target.key_variable} holds no key that a header can carry: set it again")
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    return Address(base=target.base, timeout_s=target.timeout_s, headers=headers)


async def ask(address: Address, dialect: Dialect, body: dict[str, Any], *, num_answers: int = 1) -> StreamedAnswer:
    """One request from its connection to the end of its answer."""
    connection = await connect(address)
    try:
        return await ask_on(connection, dialect, body, num_answers=num_answers)
    finally:
        await connection.close()


async def ask_on(
    connection: Connection, dialect: Dialect, body: dict[str, Any], *, num_answers: int = 1
) -> StreamedAnswer:
    await connection.send("POST", dialect.path, body)
    response = await connection.receive()
    if response.status != 200:
        raise_status(response.status, await response.text(), connection.address)
    return await read_answer(response, num_answers=num_answers)


class RefusedError(ConfigError):
    """The server does not accept what was sent."""


def raise_status(status: int, text: str, address: Address) -> None:
    """The error that a status means: what was sent is wrong, or the server is."""
    says = f": {shown(error_words(text), most=160)}" if text.strip() else ""
    if status in KEY_STATUSES:
        raise ConfigError(f"{address.base}: refuses the key ({status}): give its variable with --api-key-env")
    if status in REFUSED:
        raise RefusedError(f"{address.base}: refuses the request ({status}){says}")
    busy = ", it is overloaded: lower --rate or --concurrency" if status in BUSY else ""
    raise ServerFailedError(f"answered {status}{says}{busy}")


async def find_dialect(address: Address, run: GenerateRun) -> Dialect:
    """The richest form of a request that the server accepts, tried with one token."""
    target, plan = run.target, run.requests
    assert isinstance(target, ServerTarget)
    model = target.model or await first_model(address)
    probe = PlannedRequest(number=2**31, load=0, num_prompt=4, num_answer=1, arrival_s=0.0)
    first_error: Exception | None = None
    for dialect in _dialects(model, target, has_texts=plan.has_texts):
        body = dialect.body(plan, probe, run.sampling, vocab=run.vocab)
        body.pop("n", None)
        try:
            answer = await ask(address, dialect, body)
        except (RefusedError, ServerFailedError) as error:
            first_error = first_error or error
            if isinstance(error, ServerFailedError) and "answered 5" not in str(error):
                raise
            continue
        return dialect if answer.usage is not None else replace(dialect, counts_usage=False)
    assert first_error is not None
    if isinstance(first_error, RefusedError):
        raise ConfigError(f"{first_error}: check --server-model and --api") from first_error
    raise first_error


def _dialects(model: str, target: ServerTarget, *, has_texts: bool) -> Iterator[Dialect]:
    apis: tuple[Literal["completions", "chat"], ...] = (
        ("completions", "chat") if target.api == "auto" else (target.api,)
    )
    for api in apis:
        for by_tokens in (True, False):
            if by_tokens and (api == "chat" or has_texts):
                continue
            for fixes_length, counts_usage in ((True, True), (False, True), (True, False), (False, False)):
                yield Dialect(
                    model=model, api=api, by_tokens=by_tokens, fixes_length=fixes_length, counts_usage=counts_usage
                )  # fmt: skip


async def first_model(address: Address) -> str:
    """The first model that the server lists."""
    status, text = await get_text(address, "/v1/models")
    if status in KEY_STATUSES or status in BUSY:
        raise_status(status, text, address)
    if status >= 500:
        raise ServerFailedError(f"answered {status} to /v1/models; name its model with --server-model")
    try:
        return str(json.loads(text)["data"][0]["id"])
    except (ValueError, KeyError, IndexError, TypeError) as error:
        raise ConfigError(
            f"{address.base}: lists no model under /v1/models ({status}): name one with --server-model, or check --url"
        ) from error
