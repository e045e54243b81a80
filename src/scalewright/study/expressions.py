"""Derived values of a study: small arithmetic expressions over the values of a point, and placeholders in texts."""

from __future__ import annotations

import ast
import math
import operator
import re
from collections.abc import Callable, Mapping
from typing import Any

from scalewright.errors import ConfigError, nearest

Value = str | int | float | bool
MAX_LENGTH = 200
MAX_POWER = 64
MAX_BITS = 1000
"""Of a whole number in between: each is finite as a float."""
MAX_TEXT = 1000
_PLACEHOLDER = re.compile(r"\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OPERATORS: dict[type[ast.AST], Callable[..., Any]] = {
    ast.Add: operator.add,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    ast.FloorDiv: operator.floordiv,
    ast.Mod: operator.mod,
    ast.USub: operator.neg,
    ast.Not: operator.not_,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.In: lambda item, group: item in group,
    ast.NotIn: lambda item, group: item not in group,
}
_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "min": min,
    "max": max,
    "int": int,
    "round": round,
    "ceil": math.ceil,
    "floor": math.floor,
    "log2": math.log2,
}


def evaluate(text: str, values: Mapping[str, Value], *, where: str) -> Value:
    """The value of an expression such as `192 * dp if scaling == 'weak' else 1536`; no other syntax is allowed."""
    if len(text) > MAX_LENGTH:
        raise ConfigError(f"{where}: an expression of {len(text)} characters: keep it under {MAX_LENGTH}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
    except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
        raise ConfigError(f"{where}: {text!r} is not an expression: write one such as nodes * 4") from error
    try:
        value = _value(tree, values, where)
    except (TypeError, ValueError, OverflowError, ZeroDivisionError) as error:
        raise ConfigError(f"{where}: {text!r} cannot be computed: {error}") from error
    if isinstance(value, float) and not math.isfinite(value):
        raise ConfigError(f"{where}: {text!r} is {value}: it must be a number")
    if not isinstance(value, str | int | float | bool):
        raise ConfigError(f"{where}: {text!r} is a {type(value).__name__}: it must be a number, a text, true or false")
    return value


def _value(node: ast.AST, values: Mapping[str, Value], where: str) -> Any:
    def of(inner: ast.AST) -> Any:
        return _value(inner, values, where)

    match node:
        case ast.Constant(value=str() | int() | float() | bool() as constant):
            return constant
        case ast.Name(id=name):
            return _named(name, values, shown_as=repr(name), where=where)
        case ast.BinOp(left=left, op=ast.Pow(), right=right):
            base, power = of(left), of(right)
            return _power(base, power)
        case ast.BinOp(left=left, op=sign, right=right) if type(sign) in _OPERATORS:
            if (
                isinstance(left, ast.Constant | ast.Name)
                and isinstance(of(left), str)
                and not isinstance(sign, ast.Add)
            ):
                raise TypeError("texts can only be joined or compared")
            return _small(_OPERATORS[type(sign)](of(left), of(right)))
        case ast.UnaryOp(op=sign, operand=operand) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](of(operand))
        case ast.BoolOp(op=ast.And(), values=parts):
            return all(of(part) for part in parts)
        case ast.BoolOp(op=ast.Or(), values=parts):
            return any(of(part) for part in parts)
        case ast.Compare(left=left, ops=[sign], comparators=[right]) if type(sign) in _OPERATORS:
            return _OPERATORS[type(sign)](of(left), of(right))
        case ast.IfExp(test=test, body=body, orelse=other):
            return of(body) if of(test) else of(other)
        case ast.Tuple(elts=parts) | ast.List(elts=parts):
            return tuple(of(part) for part in parts)
        case ast.Call(func=ast.Name(id=name), args=arguments, keywords=[]) if name in _FUNCTIONS:
            return _FUNCTIONS[name](*[of(argument) for argument in arguments])
    functions = ", ".join(_FUNCTIONS)
    raise ConfigError(f"{where}: an expression may use arithmetic, comparisons, `a if b else c` and {functions}")


def _power(base: Any, power: Any) -> Any:
    """A power whose result is known to be small before it is computed."""
    if not isinstance(base, int | float) or not isinstance(power, int | float) or abs(power) > MAX_POWER:
        raise ValueError(f"a power needs two numbers, the second of at most {MAX_POWER}")
    if isinstance(base, int) and base.bit_length() * abs(power) > MAX_BITS:
        raise OverflowError(f"a power with over {MAX_BITS} bits")
    result = base**power
    if isinstance(result, complex):
        raise ValueError("the root of a negative number")
    return result


def _small(value: Any) -> Any:
    """Products and joined texts may not grow without end."""
    if isinstance(value, int) and value.bit_length() > MAX_BITS:
        raise OverflowError(f"a whole number with over {MAX_BITS} bits")
    if isinstance(value, str | tuple) and len(value) > MAX_TEXT:
        raise OverflowError(f"a text or a list of over {MAX_TEXT} parts")
    return value


def fill(text: str, values: Mapping[str, Value], *, where: str) -> str:
    """The text with `{name}` replaced by the point's values."""

    def one(match: re.Match[str]) -> str:
        name = match.group(1)
        return shown(_named(name, values, shown_as=f"{{{name}}}", where=where))

    return _PLACEHOLDER.sub(one, text)


def _named(name: str, values: Mapping[str, Value], *, shown_as: str, where: str) -> Value:
    if name not in values:
        near = nearest(name, values)
        hint = f"did you mean {', '.join(near)}?" if near else f"known: {', '.join(sorted(values))}"
        raise ConfigError(f"{where}: {shown_as} is not a value of the point: {hint}")
    return values[name]


def shown(value: Value) -> str:
    """As people write it: true and false in lower case, whole numbers without a point."""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value)
