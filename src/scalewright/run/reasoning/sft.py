"""Supervised fine-tuning: on cold-start traces of the task, or on answers that an earlier stage generated."""

from __future__ import annotations

from pathlib import Path

from scalewright.data.tokens.answers import AnswerSamples, AnswerTokens
from scalewright.data.tokens.reader import TokenReader, data_state
from scalewright.errors import ConfigError
from scalewright.records.reasoning import CurvePoint, read_stored_answers
from scalewright.run.reasoning.batches import TokenSequence
from scalewright.run.reasoning.objectives import ResponseLoss
from scalewright.run.reasoning.session import StageSession
from scalewright.run.reasoning.training_stage import TrainingStage
from scalewright.workload.reasoning.stage_run import DistillSettings, SftSettings


class SftStage(TrainingStage):
    """Reads as the trainer of text does: ahead, in an order by the seed, from the sample of any step on."""

    reader: TokenReader[list[AnswerTokens]] | None = None

    def prepare(self) -> None:
        with self.session.clock.part("data"):
            samples = training_samples(self.session)
        gbs = int(self.config.layout.gbs)
        state = data_state(samples, num_samples=self.first_step * gbs)
        # Every rank reads the whole batch: sequences are dealt out by their lengths.
        self.reader = TokenReader(samples, batch=gbs, state=state)

    def step(self, step: int) -> CurvePoint:
        settings, session = self.config.settings, self.session
        assert isinstance(settings, SftSettings | DistillSettings)
        assert self.reader is not None
        with session.clock.part("data"):
            sequences = [TokenSequence(*answered) for answered in next(self.reader)]
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

    def close(self) -> None:
        if self.reader is not None:
            self.reader.close()
        super().close()

    def conclude(self) -> None:
        """Any loss is a result."""


def training_samples(session: StageSession) -> AnswerSamples:
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
        pairs = ((answer.prompt, answer.response) for answer in answers)
        return AnswerSamples(config.data_from, pairs, seed=config.seed)
    settings = config.settings
    assert isinstance(settings, SftSettings | DistillSettings)
    traces = session.task.cold_start(settings.num_traces, seed=config.seed)
    return AnswerSamples("traces", ((one.problem.prompt, one.response) for one in traces), seed=config.seed)
