"""Supervised fine-tuning: on cold-start traces of the task, or on answers that an earlier stage generated."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from scalewright.data.tokens.permutation import Permutation
from scalewright.errors import ConfigError
from scalewright.records.reasoning import CurvePoint, read_stored_answers
from scalewright.run.reasoning.batches import TokenSequence
from scalewright.run.reasoning.objectives import ResponseLoss
from scalewright.run.reasoning.session import StageSession
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning.stage_run import DistillSettings, SftSettings

ORDER_SALT = 3
"""Keeps the order of the data apart from other random numbers of the same seed."""


class SftStage(TrainingStage):
    """Every epoch takes each sequence once, in an order by the seed."""

    def prepare(self) -> None:
        with self.session.clock.part("data"):
            self._sequences = training_sequences(self.session)

    def step(self, step: int) -> CurvePoint:
        settings, session = self.config.settings, self.session
        assert isinstance(settings, SftSettings | DistillSettings)
        with session.clock.part("data"):
            sequences = self._batch(step)
            batches = self.micro_batches(sequences, packs=settings.packs)
        result = self.update(batches, ResponseLoss())
        numbers = result.numbers
        num_tokens = sum(len(one.prompt) + len(one.response) for one in sequences)
        session.totals.add("num_samples", len(sequences))
        session.totals.add("num_tokens", num_tokens)
        return CurvePoint(
            step=step, loss=float(result.loss), grad_norm=float(result.grad_norm), entropy=numbers["entropy"],
            length_mean=sum(len(one.response) for one in sequences) / len(sequences), num_tokens=num_tokens,
        )  # fmt: skip

    def conclude(self) -> None:
        """Any loss is a result."""

    def _batch(self, step: int) -> list[TokenSequence]:
        """The sequences of a step: the next `gbs` of an endless row of shuffled epochs."""
        gbs, num = int(self.config.layout.gbs), len(self._sequences)
        epochs, places = np.divmod(np.arange(step * gbs, (step + 1) * gbs), num)
        chosen = [
            int(number)
            for epoch in np.unique(epochs)
            for number in Permutation(num, self.config.seed, ORDER_SALT, int(epoch))(places[epochs == epoch])
        ]
        return [self._sequences[number] for number in chosen]


def training_sequences(session: StageSession) -> list[TokenSequence]:
    """The answers of `data_from`, or cold-start traces of the task."""
    config = session.config
    if config.data_from:
        answers = read_stored_answers(Path(config.data_from))
        if not answers:
            raise ConfigError(
                f"{config.data_from}: kept no answer: sample more answers, start from a better model, or keep all"
            )
        most = max(max((*answer.prompt, *answer.response)) for answer in answers)
        longest = max(len(answer.prompt) + len(answer.response) for answer in answers)
        if most >= config.shape.vocab:
            raise ConfigError(
                f"{config.data_from}: has token {most}, and {config.model_id} a vocabulary of {config.shape.vocab}; "
                "use answers of a model with the same tokenizer"
            )
        if longest > config.context + 1:
            raise ConfigError(
                f"{config.data_from}: its longest answer with its prompt has {longest} tokens, and this task has at "
                f"most {config.context}: use answers of the same task"
            )
        return [TokenSequence(answer.prompt, answer.response) for answer in answers]
    settings = config.settings
    assert isinstance(settings, SftSettings | DistillSettings)
    traces = session.task.cold_start(settings.num_traces, seed=config.seed)
    return [TokenSequence(trace.problem.prompt, trace.response) for trace in traces]
