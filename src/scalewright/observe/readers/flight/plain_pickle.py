"""Pickles without execution: numbers, texts, lists, tuples, dictionaries and nothing else.

A pickle is a program for a small stack machine. This module runs that program itself and knows only instructions that
build plain values. Those that import, call or build objects end the reading, so nothing in a file can run.
"""

from __future__ import annotations

import pickletools
import struct
from collections.abc import Callable
from typing import Any

from scalewright import units

MOST_BYTES = 512 * units.MIB
"""A dump of 2000 entries with stacks has a few MB; recorders of 20000 entries have been seen."""
MOST_VALUES = 20_000_000
"""Instructions: a file may nest or repeat values without end."""
MOST_TEXT_BYTES = 64 * units.MIB
PLAIN_KEYS = (str, int, float, bytes, type(None))
"""A tuple in tuples a million deep would be hashed by recursion, which ends the process."""
MARK = object()


class PlainPickleError(ValueError):
    """The file is no pickle, is cut, or wants more than plain values. What was read before stays in `partial`."""

    def __init__(self, message: str, partial: Any = None) -> None:
        super().__init__(message)
        self.partial = partial


class _Machine:
    """Stack, memo and the instructions that build plain values."""

    def __init__(self, data: bytes) -> None:
        self.data = data
        self.position = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.result: Any = None
        self.is_done = False

    # ------------------------------------------------------------------ bytes
    def take(self, count: int) -> bytes:
        end = self.position + count
        if count < 0 or end > len(self.data):
            raise PlainPickleError(f"the pickle ends in the middle, after {len(self.data)} bytes", self.partial())
        piece = self.data[self.position : end]
        self.position = end
        return piece

    def skip(self, count: int) -> None:
        self.take(count)

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def line(self) -> bytes:
        end = self.data.find(b"\n", self.position)
        if end < 0:
            raise PlainPickleError(f"the pickle ends in the middle, after {len(self.data)} bytes", self.partial())
        piece = self.data[self.position : end]
        self.position = end + 1
        return piece

    def text(self, count: int) -> str:
        if count > MOST_TEXT_BYTES:
            raise PlainPickleError(f"a text of {count} bytes is above the limit of {MOST_TEXT_BYTES}", self.partial())
        return self.take(count).decode("utf-8", "replace")

    def raw(self, count: int) -> bytes:
        if count > MOST_TEXT_BYTES:
            raise PlainPickleError(f"{count} bytes in one value are above {MOST_TEXT_BYTES}", self.partial())
        return self.take(count)

    # ------------------------------------------------------------------ stack
    def partial(self) -> Any:
        """The outermost value with what was made for it: a cut dump still has its first entries."""
        while any(value is MARK for value in self.stack):
            values = self.above_mark()
            target = self.stack[-1] if self.stack else None
            if isinstance(target, list):
                target.extend(values)
            elif isinstance(target, dict):
                target.update(
                    (k, v) for k, v in zip(values[::2], values[1::2], strict=False) if isinstance(k, PLAIN_KEYS)
                )
        return self.stack[0] if self.stack else None

    def pop(self) -> Any:
        if not self.stack or self.stack[-1] is MARK:
            raise PlainPickleError("the pickle takes a value that is not there", self.partial())
        return self.stack.pop()

    def above_mark(self) -> list[Any]:
        for index in range(len(self.stack) - 1, -1, -1):
            if self.stack[index] is MARK:
                values = self.stack[index + 1 :]
                del self.stack[index:]
                return values
        raise PlainPickleError("the pickle has no mark where it needs one", self.partial())

    def drop_above_mark(self) -> None:
        self.above_mark()

    def top(self, kind: type) -> Any:
        if not self.stack or not isinstance(self.stack[-1], kind):
            raise PlainPickleError(f"the pickle adds to a {kind.__name__} that is not there", self.partial())
        return self.stack[-1]

    def put(self, index: int) -> None:
        if self.stack and self.stack[-1] is not MARK:
            self.memo[index] = self.stack[-1]

    def get(self, index: int) -> None:
        if index not in self.memo:
            raise PlainPickleError(f"the pickle refers to value {index}, which it never made", self.partial())
        self.stack.append(self.memo[index])

    def set_items(self, target: dict[Any, Any], values: list[Any]) -> None:
        for key, value in zip(values[::2], values[1::2], strict=False):
            if not isinstance(key, PLAIN_KEYS):
                raise PlainPickleError("a key of a dictionary is not a number or a text", self.partial())
            target[key] = value


def _stop(machine: _Machine) -> None:
    machine.result, machine.is_done = machine.pop(), True


def _int_line(machine: _Machine) -> Any:
    word = machine.line().strip()
    if word in (b"00", b"01"):
        return word == b"01"
    return _whole(word, machine)


def _whole(word: bytes, machine: _Machine) -> int:
    try:
        return int(word.rstrip(b"L")[:40] or b"0")
    except ValueError:
        raise PlainPickleError(f"{word[:20]!r} is not a whole number", machine.partial()) from None


def _float_line(machine: _Machine) -> float:
    word = machine.line().strip()
    try:
        return float(word[:60])
    except ValueError:
        raise PlainPickleError(f"{word[:20]!r} is not a number", machine.partial()) from None


def _quoted(machine: _Machine) -> str:
    return machine.line().strip().strip(b"'\"").decode("utf-8", "replace")


def _long(machine: _Machine, count: int) -> int:
    return int.from_bytes(machine.raw(count), "little", signed=True)


def _push(value_of: Callable[[_Machine], Any]) -> Callable[[_Machine], None]:
    return lambda machine: machine.stack.append(value_of(machine))


def _tuple(count: int) -> Callable[[_Machine], None]:
    def build(machine: _Machine) -> None:
        values = [machine.pop() for _ in range(count)]
        machine.stack.append(tuple(reversed(values)))

    return build


def _append(machine: _Machine) -> None:
    value = machine.pop()
    machine.top(list).append(value)


def _appends(machine: _Machine) -> None:
    values = machine.above_mark()
    machine.top(list).extend(values)


def _set_item(machine: _Machine) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items(machine.top(dict), [key, value])


def _set_items(machine: _Machine) -> None:
    values = machine.above_mark()
    machine.set_items(machine.top(dict), values)


def _dict(machine: _Machine) -> None:
    values = machine.above_mark()
    target: dict[Any, Any] = {}
    machine.stack.append(target)
    machine.set_items(target, values)


def _pop(machine: _Machine) -> None:
    if machine.stack:
        machine.stack.pop()


def _duplicate(machine: _Machine) -> None:
    value = machine.pop()
    machine.stack += [value, value]


_STEPS: dict[str, Callable[[_Machine], None]] = {
    "PROTO": lambda m: m.skip(1),
    "FRAME": lambda m: m.skip(8),
    "STOP": _stop,
    "MARK": lambda m: m.stack.append(MARK),
    "POP": _pop,
    "POP_MARK": lambda m: m.drop_above_mark(),
    "DUP": _duplicate,
    "NONE": _push(lambda _: None),
    "NEWTRUE": _push(lambda _: True),
    "NEWFALSE": _push(lambda _: False),
    "INT": _push(_int_line),
    "LONG": _push(lambda m: _whole(m.line().strip(), m)),
    "BININT": _push(lambda m: m.number("<i")),
    "BININT1": _push(lambda m: m.number("<B")),
    "BININT2": _push(lambda m: m.number("<H")),
    "LONG1": _push(lambda m: _long(m, m.number("<B"))),
    "LONG4": _push(lambda m: _long(m, min(m.number("<I"), units.KIB))),
    "FLOAT": _push(_float_line),
    "BINFLOAT": _push(lambda m: m.number(">d")),
    "STRING": _push(_quoted),
    "UNICODE": _push(lambda m: m.line().decode("raw-unicode-escape", "replace")),
    "BINSTRING": _push(lambda m: m.text(m.number("<I"))),
    "SHORT_BINSTRING": _push(lambda m: m.text(m.number("<B"))),
    "BINUNICODE": _push(lambda m: m.text(m.number("<I"))),
    "SHORT_BINUNICODE": _push(lambda m: m.text(m.number("<B"))),
    "BINUNICODE8": _push(lambda m: m.text(m.number("<Q"))),
    "BINBYTES": _push(lambda m: m.raw(m.number("<I"))),
    "SHORT_BINBYTES": _push(lambda m: m.raw(m.number("<B"))),
    "BINBYTES8": _push(lambda m: m.raw(m.number("<Q"))),
    "EMPTY_LIST": _push(lambda _: []),
    "EMPTY_DICT": _push(lambda _: {}),
    "EMPTY_TUPLE": _push(lambda _: ()),
    "LIST": lambda m: m.stack.append(m.above_mark()),
    "DICT": _dict,
    "TUPLE": lambda m: m.stack.append(tuple(m.above_mark())),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "APPEND": _append,
    "APPENDS": _appends,
    "SETITEM": _set_item,
    "SETITEMS": _set_items,
    "PUT": lambda m: m.put(_whole(m.line().strip(), m)),
    "BINPUT": lambda m: m.put(m.number("<B")),
    "LONG_BINPUT": lambda m: m.put(m.number("<I")),
    "MEMOIZE": lambda m: m.put(len(m.memo)),
    "GET": lambda m: m.get(_whole(m.line().strip(), m)),
    "BINGET": lambda m: m.get(m.number("<B")),
    "LONG_BINGET": lambda m: m.get(m.number("<I")),
}
"""Every instruction that is understood. GLOBAL, REDUCE, BUILD, INST, OBJ, NEWOBJ, EXT and persistent ids are not."""
_NAMES = {ord(code.code): code.name for code in pickletools.opcodes}
_BY_CODE = {code: _STEPS.get(name) for code, name in _NAMES.items()}


def plain_value(data: bytes) -> Any:
    """The value of a pickle; `PlainPickleError` for everything that is not plain, whole and within the limits."""
    if len(data) > MOST_BYTES:
        raise PlainPickleError(f"{len(data)} bytes are above the limit of {MOST_BYTES} for a pickle")
    machine = _Machine(data)
    for _ in range(MOST_VALUES):
        code = machine.take(1)[0]
        step = _BY_CODE.get(code)
        if step is None:
            name = _NAMES.get(code, f"byte {code}")
            raise PlainPickleError(
                f"the pickle uses {name}, which makes more than plain values: not read", machine.partial()
            )
        step(machine)
        if machine.is_done:
            return machine.result
    raise PlainPickleError(f"the pickle has more than {MOST_VALUES} instructions", machine.partial())


def starts_as_pickle(data: bytes) -> bool:
    """Whether a file begins as pickles do that hold a dictionary or a list."""
    if data[:1] == b"\x80" and len(data) > 2:
        body = data[11:] if data[2:3] == b"\x95" else data[2:]
        return data[1] <= 5 and body[:1] in (b"}", b"]", b"(")
    return data[:2] in (b"(d", b"(l") or data[:3] in (b"}q\0", b"]q\0")
