"""An answer and its tests in two processes: tests call what the answer defines, and only plain values come over.

The answer's process never sees the tests, and code of the answer never runs in the process that decides. So an answer
cannot pass by ending the process, patching builtins, an `__eq__` that is always true, or writing a result by itself.
"""

from __future__ import annotations

import ast
import builtins
import importlib
import json
import socket
import sys
from collections.abc import Iterator
from typing import Any

from scalewright.data.sandbox.plain_values import decoded, encoded

MOST_LINE_BYTES = 1 << 24
MOST_ITEMS = 100_000
"""Of something that is iterated over."""


class AnswerEndedError(Exception):
    """The answer's process does not reply."""


def serve_answer(source: str, channel: socket.socket) -> None:
    """In the answer's process: run the answer, then do what the tests call, until they end."""
    own: dict[int, Any] = {}

    def handle_of(value: Any) -> int:
        own[id(value)] = value
        return id(value)

    names = {"__name__": "answer", "__builtins__": builtins}
    stream = channel.makefile("rwb")
    _send(stream, _outcome(lambda: _defined(source, names), handle_of, []))
    while line := stream.readline(MOST_LINE_BYTES):
        request = json.loads(line)
        arguments = decoded(request["arguments"], lambda target: _thing(target, names, own))
        keywords = decoded(request["keywords"], lambda target: _thing(target, names, own))
        call = _operation(request, names, own, arguments, keywords)
        _send(stream, _outcome(call, handle_of, arguments))


def _defined(source: str, names: dict[str, Any]) -> list[str]:
    exec(compile(source, "answer", "exec"), names)
    return [name for name in names if not name.startswith("__")]


def _thing(target: Any, names: dict[str, Any], own: dict[int, Any]) -> Any:
    """What a handle names: something that the answer defines, or that a call returned."""
    return names.get(target) if isinstance(target, str) else own[target]


def _operation(request: Any, names: dict[str, Any], own: dict[int, Any], arguments: list[Any], keywords: Any) -> Any:
    thing = _thing(request["target"], names, own)
    match request["operation"]:
        case "call":
            return lambda: thing(*arguments, **keywords)
        case "value":
            return lambda: thing
        case "attribute":
            return lambda: getattr(thing, arguments[0])
        case "item":
            return lambda: thing[arguments[0]]
        case "length":
            return lambda: len(thing)
        case "items":
            return lambda: [one for one, _ in zip(thing, range(MOST_ITEMS), strict=False)]
    return lambda: str(thing)


def _outcome(call: Any, handle_of: Any, arguments: list[Any]) -> dict[str, Any]:
    try:
        value = call()
        return {"value": encoded(value, handle_of), "arguments": encoded(arguments, handle_of)}
    except BaseException as error:  # any exception of the answer is a result of the call
        return {"raised": type(error).__name__[:100], "text": _text(error)}


def _text(error: BaseException) -> str:
    try:
        return str(error)[:300]
    except BaseException:  # its __str__ is the answer's code
        return ""


def _send(stream: Any, body: Any) -> None:
    stream.write(json.dumps(body).encode() + b"\n")
    stream.flush()


class AnswerChannel:
    """In the tests' process: calls into the answer's."""

    def __init__(self, channel: socket.socket) -> None:
        self._stream = channel.makefile("rwb")

    def defined(self) -> list[str]:
        """Names that the answer defines. The exception of the answer where it raised one."""
        names = self._reply([])
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise AnswerEndedError("the answer's process wrote something else than its names")
        return names

    def ask(self, operation: str, target: Any, arguments: tuple[Any, ...] = (), keywords: Any = None) -> Any:
        sent = list(arguments)
        request = {
            "operation": operation, "target": target, "arguments": encoded(sent, _known_handle),
            "keywords": encoded(dict(keywords or {}), _known_handle),
        }  # fmt: skip
        try:
            _send(self._stream, request)
        except OSError as error:
            raise AnswerEndedError("the answer's process ended") from error
        return self._reply(sent)

    def _reply(self, sent: list[Any]) -> Any:
        try:
            line = self._stream.readline(MOST_LINE_BYTES)
            if not line.endswith(b"\n"):
                raise AnswerEndedError("the answer's process ended, or wrote too much")
            body = json.loads(line)
            if "raised" in body:
                raise _exception(str(body["raised"]), str(body["text"]))
            _update(sent, decoded(body["arguments"], self._remote))
            return decoded(body["value"], self._remote)
        except (OSError, ValueError, KeyError, TypeError, RecursionError) as error:
            if getattr(error, "is_answers_own", False):
                raise
            raise AnswerEndedError("the answer's process wrote something that is no value") from error

    def _remote(self, handle: Any) -> RemoteObject:
        return RemoteObject(self, int(handle))


class RemoteObject:
    """Something of the answer that is no plain value. Equality is identity here: its own is not trusted."""

    def __init__(self, channel: AnswerChannel, target: Any) -> None:
        self._channel, self._target = channel, target

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        return self._channel.ask("call", self._target, arguments, keywords)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__"):
            raise AttributeError(name)
        return self._channel.ask("attribute", self._target, (name,))

    def __getitem__(self, key: Any) -> Any:
        return self._channel.ask("item", self._target, (key,))

    def __len__(self) -> int:
        return int(self._channel.ask("length", self._target))

    def __iter__(self) -> Iterator[Any]:
        return iter(list(self._channel.ask("items", self._target)))

    def __str__(self) -> str:
        return str(self._channel.ask("text", self._target))

    def __bool__(self) -> bool:
        return True

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RemoteObject) and other._target == self._target

    def __hash__(self) -> int:
        return hash(self._target)


def _known_handle(value: Any) -> Any:
    if isinstance(value, RemoteObject):
        return value._target
    raise TypeError(f"{type(value).__name__} cannot be given to the answer: use numbers, texts and collections")


def _exception(name: str, text: str) -> BaseException:
    """An exception of the answer as its builtin class, so that tests can expect it; any other is a RuntimeError."""
    kind = getattr(builtins, name, None)
    is_usable = isinstance(kind, type) and issubclass(kind, Exception)
    try:
        error: BaseException = kind(text) if is_usable else RuntimeError(f"{name}: {text}")  # type: ignore[misc]
    except TypeError:
        error = RuntimeError(f"{name}: {text}")
    error.is_answers_own = True  # type: ignore[attr-defined]
    return error


def _update(sent: list[Any], changed: Any) -> None:
    """Lists, sets and dictionaries that the call changed in place are changed here too."""
    if not isinstance(changed, list) or len(changed) != len(sent):
        raise ValueError("not the arguments")
    for own, new in zip(sent, changed, strict=True):
        if type(own) is list and type(new) is list:
            own[:] = new
        elif (type(own) is dict and type(new) is dict) or (type(own) is set and type(new) is set):
            own.clear()
            own.update(new)


def run_tests(tests: str, channel: socket.socket) -> dict[str, Any]:
    """In the tests' process: whether every assert holds, and why not."""
    answer = AnswerChannel(channel)
    try:
        names = answer.defined()
    except BaseException as error:
        return _failed(f"the answer raised {_shown(error)}")
    objects: dict[str, Any] = {"__name__": "tests", "__builtins__": builtins}
    try:
        tree = ast.parse(tests, "tests")
        used = {node.id for node in ast.walk(tree) if isinstance(node, ast.Name)}
        objects.update(_answers_objects(answer, [name for name in names if name in used]))
        exec(compile(tree, "tests", "exec"), objects)
    except AssertionError as error:
        return _failed(f"an assert does not hold{_at_line(error)}{f': {error}' if str(error) else ''}")
    except BaseException as error:
        return _failed(f"{_shown(error)}{_at_line(error)}")
    return {"reward": 1.0, "is_correct": True, "why": "all tests pass"}


def _answers_objects(answer: AnswerChannel, names: list[str]) -> dict[str, Any]:
    """What the answer defines, for the tests. It cannot replace builtins, and modules are this process's own."""
    objects: dict[str, Any] = {}
    for name in names:
        if name in sys.stdlib_module_names:
            objects[name] = importlib.import_module(name)
        elif not hasattr(builtins, name):
            value = answer.ask("value", name)
            objects[name] = RemoteObject(answer, name) if isinstance(value, RemoteObject) else value
    return objects


def _failed(why: str) -> dict[str, Any]:
    return {"reward": 0.0, "is_correct": False, "why": why[:300]}


def _shown(error: BaseException) -> str:
    if isinstance(error, AnswerEndedError):
        return str(error)
    return f"{type(error).__name__}{f': {error}' if str(error) else ''}"


def _at_line(error: BaseException) -> str:
    trace, line = error.__traceback__, 0
    while trace is not None:
        if trace.tb_frame.f_code.co_filename == "tests":
            line = trace.tb_lineno
        trace = trace.tb_next
    return f" (line {line} of the tests)" if line else ""
