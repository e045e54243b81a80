"""The verifier of countdown: it follows every written step and names the first fault."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from scalewright.data.reasoning.symbols import ANSWER, EQUALS, NEXT, STOP, Symbols

NO_VALUE = -1


def applied(operator: str, left: int, right: int) -> int:
    """The value of one step; -1 where it has none: below 0, or a division with a rest."""
    match operator:
        case "+":
            return left + right
        case "-":
            return max(left - right, NO_VALUE)
        case "*":
            return left * right
        case _:
            return left // right if right and left % right == 0 else NO_VALUE


@dataclass(frozen=True, slots=True)
class WrittenAttempt:
    """One written attempt, as far as it was read."""

    expression: tuple[int, ...] = ()
    """Its tokens without the intermediate values."""
    value: int = NO_VALUE
    fault: str = ""


def first_fault(
    response: Sequence[int], *, numbers: Sequence[int], target: int, symbols: Symbols, max_attempts: int
) -> str:
    """What is wrong with an answer, as one phrase; empty where every step is right and the target is reached.

    The answer must repeat the expression of the last attempt: a guess whose steps are not written earns nothing.
    """
    tokens = tuple(response)
    if not tokens or tokens[-1] != STOP:
        return "no EOS: the answer is cut" if tokens else "the answer is empty"
    length = 4 * len(numbers) - 2
    attempt = WrittenAttempt()
    place = num_attempts = 0
    while tokens[place] != ANSWER:
        num_attempts += 1
        if num_attempts > max_attempts:
            return f"more than {max_attempts} attempts" if tokens[place] != STOP else "no ANS after the attempts"
        attempt = read_attempt(tokens[place : place + length], numbers, symbols)
        if attempt.fault:
            return f"attempt {num_attempts}, {attempt.fault}"
        place += length
    if not num_attempts:
        return "no attempt is written before ANS"
    if attempt.value != target:
        return f"the last attempt gives {attempt.value}, and the target is {target}"
    answer = tokens[place + 1 : -1]
    if answer != attempt.expression:
        return f"ANS {symbols.text(answer)} is not the last attempt" if answer else "ANS is empty"
    return ""


def read_attempt(tokens: Sequence[int], numbers: Sequence[int], symbols: Symbols) -> WrittenAttempt:
    """An attempt `a op b = r op c = s ;`. Reading ends at its first fault. EOS is one, so nothing behind it is read."""
    remaining = list(numbers)
    value = symbols.value(tokens[0])
    if value not in remaining:
        return WrittenAttempt(fault=f"step 1: {symbols.name(tokens[0])} is none of the numbers")
    remaining.remove(value)
    expression = [tokens[0]]
    for step in range(1, len(numbers)):
        place = 4 * step - 3
        operator = symbols.operator(tokens[place])
        if not operator:
            return WrittenAttempt(fault=f"step {step}: {symbols.name(tokens[place])} is no operator")
        number = symbols.value(tokens[place + 1])
        if number not in remaining:
            return WrittenAttempt(
                fault=f"step {step}: {symbols.name(tokens[place + 1])} is none of the numbers that are left"
            )
        remaining.remove(number)
        if tokens[place + 2] != EQUALS:
            return WrittenAttempt(fault=f"step {step}: {symbols.name(tokens[place + 2])} stands in the place of =")
        result = symbols.value(tokens[place + 3])
        if result < 0 or result != applied(operator, value, number):
            written = f"{value} {operator} {number} = {symbols.name(tokens[place + 3])}"
            return WrittenAttempt(fault=f"step {step}: {written} is wrong")
        value = result
        expression += tokens[place : place + 2]
    if tokens[-1] != NEXT:
        return WrittenAttempt(fault=f"{symbols.name(tokens[-1])} stands in the place of ;")
    return WrittenAttempt(tuple(expression), value)
