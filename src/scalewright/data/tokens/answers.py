"""AnswerSamples: prompts with their answers as samples of training, in an order that the seed decides."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.permutation import Permutation

ORDER_SALT = 3
"""Keeps the order of the data apart from other random numbers of the same seed."""


class AnswerTokens(NamedTuple):
    """Tokens of a prompt and of an answer to it."""

    prompt: list[int]
    response: list[int]


class AnswerSamples:
    """Every epoch takes each answer once. All tokens lie in one array of four bytes each."""

    def __init__(self, name: str, answers: Iterable[tuple[Sequence[int], Sequence[int]]], *, seed: int) -> None:
        tokens, lengths = [np.empty(0, np.int32)], []
        for prompt, response in answers:
            tokens.append(np.array([*prompt, *response], np.int32))
            lengths.append((len(prompt), len(response)))
        self.names, self._seed = [name], seed
        self._tokens = np.concatenate(tokens)
        self._lengths = np.array(lengths, np.int64).reshape(-1, 2)
        self._ends = np.cumsum(self._lengths.sum(axis=1))

    @property
    def num_tokens(self) -> list[int]:
        """A set that has changed since a checkpoint has other samples."""
        return [len(self._tokens)]

    def __len__(self) -> int:
        return len(self._lengths)

    def read(self, indices: Sequence[int] | NDArray[np.int64]) -> list[AnswerTokens]:
        """The samples with these numbers of an endless row of shuffled epochs."""
        epochs, places = np.divmod(np.asarray(indices, dtype=np.int64), len(self))
        numbers = np.empty(len(places), np.int64)
        for epoch in np.unique(epochs):
            chosen = epochs == epoch
            numbers[chosen] = Permutation(len(self), self._seed, ORDER_SALT, int(epoch))(places[chosen])
        return [self._answer(int(number)) for number in numbers]

    def _answer(self, number: int) -> AnswerTokens:
        num_prompt, num_response = self._lengths[number].tolist()
        end = int(self._ends[number])
        middle = end - num_response
        return AnswerTokens(self._tokens[middle - num_prompt : middle].tolist(), self._tokens[middle:end].tolist())
