"""Prompts with answers through the reader of token sets: the same order on any number of ranks and after any stop."""

from __future__ import annotations

import pytest

from scalewright.data.tokens.answers import AnswerSamples, AnswerTokens
from scalewright.data.tokens.reader import TokenReader
from scalewright.errors import ConfigError

PAIRS = [([number, 1], [number, 2, 3][: 1 + number % 3]) for number in range(30)]


def samples(num: int = 30, seed: int = 4) -> AnswerSamples:
    return AnswerSamples("answers", PAIRS[:num], seed=seed)


def read(num_batches: int, *, batch: int, rank: int = 0, num_ranks: int = 1, state: dict[str, object] | None = None
         ) -> tuple[list[list[AnswerTokens]], dict[str, object]]:  # fmt: skip
    reader = TokenReader(samples(), batch=batch, rank=rank, num_ranks=num_ranks, state=state)
    try:
        return [next(reader) for _ in range(num_batches)], reader.state()
    finally:
        reader.close()


def test_an_epoch_takes_each_answer_once_whole() -> None:
    epochs = [samples().read(range(start, start + 30)) for start in (0, 30)]
    for epoch in epochs:
        assert sorted((one.prompt, one.response) for one in epoch) == sorted(PAIRS)
    assert epochs[0] != epochs[1]
    assert samples(seed=5).read(range(30)) != epochs[0]


@pytest.mark.parametrize("num_ranks", [2, 4])
def test_ranks_share_what_one_reads(num_ranks: int) -> None:
    alone, _ = read(5, batch=8)
    shares = [read(5, batch=8, rank=rank, num_ranks=num_ranks)[0] for rank in range(num_ranks)]
    for number, whole in enumerate(alone):
        assert [one for share in shares for one in share[number]] == whole


def test_a_reader_goes_on_at_the_sample_with_other_ranks_and_batches() -> None:
    before, state = read(3, batch=8)
    after, _ = read(4, batch=6, state=state)
    taken = [one for batch in [*before, *after] for one in batch]
    assert taken == samples().read(range(48))


def test_answers_that_changed_are_refused() -> None:
    _, state = read(1, batch=8)
    with pytest.raises(ConfigError, match="the data changed since the checkpoint"):
        TokenReader(samples(29), batch=8, state=state)
