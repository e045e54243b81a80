"""A trainer of answered prompts on one rank: packed like padded, many micro-batches like one, equal to the engine."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

pytest.importorskip("torch")
import torch
import torch.distributed as dist

sys.path.insert(0, str(Path(__file__).parent))
sys.path.insert(0, str(Path(__file__).parents[1]))
from generate_cases import PlainModel
from sequence_cases import CPU, SHAPES, batches_of, log_probs_of, sequences, train_and_go_on, trainer_of
from torch import Tensor

from scalewright.errors import ConfigError
from scalewright.run.device import join_group
from scalewright.run.generate.open import open_engine
from scalewright.run.generate.options import EngineOptions
from scalewright.run.generate.requests import Request, Sampling
from scalewright.run.language.rotary import LayerConstants
from scalewright.run.reasoning import scoring
from scalewright.run.reasoning.batches import TokenSequence, pack_sequences
from scalewright.run.reasoning.losses import group_advantages, token_log_probs
from scalewright.run.reasoning.objectives import PolicyData, PolicyObjective, ResponseLoss
from scalewright.run.reasoning.trainer import SequenceTrainer, open_trainer
from scalewright.run.world import World
from scalewright.workload.layout import parse_layout
from scalewright.workload.reasoning.policy_loss import policy_loss as preset


@pytest.fixture(scope="module", autouse=True)
def group() -> Iterator[None]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    join_group(World.from_environment({}, host="here"), CPU)
    yield
    dist.destroy_process_group()
    torch.set_num_threads(threads)


def plain_log_probs(trainer: SequenceTrainer, item: TokenSequence) -> list[float]:
    """One sequence at a time, through the model's own forward pass and all its scores."""
    tokens = torch.tensor([[*item.prompt, *item.response]])
    model = trainer.session.split.chunks[0]
    positions = torch.arange(tokens.shape[1] - 1)[None]
    rows = batches_of([item])[0].rows._replace(positions_BL=positions, mask=None)
    with torch.no_grad():
        scores = model(tokens[:, :-1], rows)
    values, _ = token_log_probs(scores, tokens[:, 1:])
    return values[0, len(item.prompt) - 1 :].tolist()


@pytest.mark.parametrize("name", ["gpt", "llama", "qwen"])
@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_log_probabilities_are_those_of_each_sequence_alone(name: str, packing: str) -> None:
    trainer, items = trainer_of(name), sequences()
    values = log_probs_of(trainer, batches_of(items, packing))
    assert sorted(values) == list(range(len(items)))
    for index, item in enumerate(items):
        assert values[index] == pytest.approx(plain_log_probs(trainer, item), abs=2e-5)


def test_rows_may_be_longer_than_a_sequence_may_be() -> None:
    trainer, items = trainer_of("gpt"), sequences(6)
    batches = pack_sequences(items, row_tokens=200, device=CPU)
    values, expected = log_probs_of(trainer, batches), log_probs_of(trainer, batches_of(items))
    assert len(batches) == 1
    assert all(values[i] == pytest.approx(expected[i], abs=2e-5) for i in range(6))


def test_packing_puts_several_sequences_into_a_row_and_loses_none() -> None:
    items = sequences(40)
    packed, padded = batches_of(items), batches_of(items, "padded")
    for batches in (packed, padded):
        assert sorted(i for batch in batches for i in batch.indices) == list(range(40))
        assert sum(b.num_tokens for b in batches) == sum(len(s.prompt) + len(s.response) - 1 for s in items)
    num_read = [sum(b.tokens_BL.numel() for b in batches) for batches in (packed, padded)]
    assert sum(b.tokens_BL.shape[0] for b in packed) < 40
    assert num_read[0] / sum(b.num_tokens for b in packed) < 1.15
    assert all(b.tokens_BL.numel() <= 2 * 30 for b in padded)


def test_an_engine_gives_the_log_probabilities_of_the_trainer() -> None:
    trainer = trainer_of("qwen")
    options = EngineOptions(max_context=40, precision="fp32", max_running=4)
    engine = open_engine(SHAPES["qwen"], options, device=CPU, weights=9)
    engine.replace_weights(trainer.named_weights())
    prompts = [tuple(s.prompt) for s in sequences(5)]
    for number, prompt in enumerate(prompts):
        engine.add(Request(id=str(number), prompt=prompt, max_new_tokens=8, num_answers=2, sampling=Sampling(seed=1)))
    answers = engine.drain()
    items = [TokenSequence(prompts[int(a.request_id)], a.tokens) for a in answers]
    batches = batches_of(items)
    for batch in batches:
        ours, _ = trainer.log_probs(batch)
        torch.testing.assert_close(ours, batch.per_token([a.log_probs for a in answers]), atol=3e-5, rtol=1e-5)


def test_constants_of_a_pretrained_model_are_kept() -> None:
    constants = LayerConstants(norm_epsilon=1e-2, rotary_base=50.0)
    trainer, usual = trainer_of("llama", constants=constants), trainer_of("llama")
    tokens = [*sequences(1)[0].prompt, *sequences(1)[0].response]
    expected = PlainModel("llama", constants=constants).logits(tokens[:-1]).log_softmax(dim=-1)
    values = log_probs_of(trainer, batches_of(sequences(1)))[0]
    targets = range(len(sequences(1)[0].prompt), len(tokens))
    assert values == pytest.approx([float(expected[t - 1, tokens[t]]) for t in targets], abs=2e-5)
    assert values != pytest.approx(log_probs_of(usual, batches_of(sequences(1)))[0], abs=1e-3)


def test_temperature_divides_the_scores() -> None:
    item = sequences(1)[0]
    warm = trainer_of("llama", temperature=2.0)
    model = warm.session.split.chunks[0]
    tokens = torch.tensor([[*item.prompt, *item.response]])
    with torch.no_grad():
        rows = batches_of([item])[0].rows._replace(positions_BL=torch.arange(tokens.shape[1] - 1)[None], mask=None)
        scores = model(tokens[:, :-1], rows) / 2.0
    expected, _ = token_log_probs(scores, tokens[:, 1:])
    assert log_probs_of(warm, batches_of([item]))[0] == pytest.approx(
        expected[0, len(item.prompt) - 1 :].tolist(), abs=2e-5
    )


def weights_after(trainer: SequenceTrainer) -> dict[str, Tensor]:
    return {name: values.clone() for name, values in trainer.named_weights()}


@pytest.mark.parametrize("packing", ["packed", "padded"])
def test_many_micro_batches_train_like_one(packing: str) -> None:
    items = sequences(12)
    results = []
    for num_rows in (1, 100):
        trainer = trainer_of("llama")
        batches = batches_of(items, packing, num_rows)
        outcome = [trainer.update(batches, ResponseLoss()) for _ in range(3)]
        results.append((len(batches), [float(o.loss) for o in outcome], [float(o.grad_norm) for o in outcome]))
    assert results[0][0] > 3
    assert results[1][0] == 1
    for few, one in zip(results[0][1:], results[1][1:], strict=True):
        assert few == pytest.approx(one, rel=2e-5)


def test_the_loss_is_the_mean_over_response_tokens_and_falls() -> None:
    items, trainer = sequences(12), trainer_of("gpt")
    batches = batches_of(items)
    values = log_probs_of(trainer, batches)
    tokens = [value for row in values.values() for value in row]
    first = trainer.update(batches, ResponseLoss())
    assert float(first.loss) == pytest.approx(-sum(tokens) / len(tokens), rel=1e-5)
    assert first.sums.num_tokens == len(tokens)
    losses = [float(trainer.update(batches, ResponseLoss()).loss) for _ in range(8)]
    assert losses[-1] < 0.8 * float(first.loss)


def policy_data(trainer: SequenceTrainer, batches: list, items: list[TokenSequence]) -> list[PolicyData]:
    rewards = torch.randn(len(items) // 2, 2, generator=torch.Generator().manual_seed(3))
    advantages = group_advantages(preset("grpo"), rewards).flatten().tolist()
    noise = torch.Generator().manual_seed(4)
    engine = [(0.6 * torch.randn(len(s.response), generator=noise)).tolist() for s in items]
    data = []
    for batch in batches:
        old, _ = trainer.log_probs(batch)
        data.append(
            PolicyData(
                advantages_N=batch.per_sequence(advantages),
                engine_log_probs_NR=old + batch.per_token(engine),
                old_log_probs_NR=old,
                reference_log_probs_NR=old,
            )
        )
    return data


@pytest.mark.parametrize("name", ["grpo", "dapo", "dr-grpo", "gspo"])
def test_policy_losses_do_not_depend_on_micro_batches_or_packing(name: str) -> None:
    items, results = sequences(12), []
    for packing, num_rows in (("packed", 1), ("packed", 3), ("padded", 2)):
        trainer = trainer_of("llama")
        batches = batches_of(items, packing, num_rows)
        data = policy_data(trainer, batches, items)
        objective = PolicyObjective(settings=preset(name, kl_coef=0.02), data=data, max_response=20)
        outcome = [trainer.update(batches, objective) for _ in range(3)]
        results.append([(float(o.loss), float(o.grad_norm), o.numbers["masked_frac"]) for o in outcome])
    for other in results[1:]:
        for (loss, norm, masked), expected in zip(other, results[0], strict=True):
            assert loss == pytest.approx(expected[0], rel=1e-4, abs=1e-6)
            assert norm == pytest.approx(expected[1], rel=1e-3)
            assert masked == pytest.approx(expected[2])
    assert results[0][0][2] > 0


def test_a_rewarded_answer_becomes_likelier() -> None:
    items, trainer = sequences(8), trainer_of("llama")
    batches = batches_of(items)
    before = log_probs_of(trainer, batches)
    engine = [before[i] for i in range(8)]
    advantages = [1.0 if i % 2 else -1.0 for i in range(8)]
    data = [
        PolicyData(advantages_N=b.per_sequence(advantages), engine_log_probs_NR=b.per_token(engine)) for b in batches
    ]
    for _ in range(3):
        trainer.update(batches, PolicyObjective(settings=preset("grpo"), data=data, max_response=20))
    after = log_probs_of(trainer, batches)
    changes = [sum(after[i]) - sum(before[i]) for i in range(8)]
    assert all((change > 0) == bool(i % 2) for i, change in enumerate(changes))


def test_answers_that_do_not_count_change_nothing() -> None:
    items = [item._replace(is_counted=False) for item in sequences(4)]
    trainer = trainer_of("llama")
    before = weights_after(trainer)
    result = trainer.update(batches_of(items), ResponseLoss())
    assert result.is_skipped
    assert trainer.optimizer.num_updates == 0
    assert all(torch.equal(values, before[name]) for name, values in trainer.named_weights())
    counted, both = sequences(4), [*sequences(4), *(item._replace(is_counted=False) for item in sequences(4, seed=5))]
    losses = [float(trainer_of("llama").update(batches_of(chosen), ResponseLoss()).loss) for chosen in (counted, both)]
    assert losses[1] == pytest.approx(losses[0], rel=1e-5)


@pytest.mark.parametrize("keeps", [True, False])
def test_scores_in_pieces_have_the_gradient_of_all_scores(keeps: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(scoring.CHUNK_BYTES, "cpu", 4 * 97 * 5)  # 5 rows at a time
    monkeypatch.setitem(scoring.KEPT_BYTES, "cpu", 10**9 if keeps else 0)
    trainer, items = trainer_of("llama"), sequences(6)
    in_pieces = trainer.update(batches_of(items), ResponseLoss())
    monkeypatch.undo()
    whole = trainer_of("llama").update(batches_of(items), ResponseLoss())
    assert float(in_pieces.grad_norm) == pytest.approx(float(whole.grad_norm), rel=1e-5)
    x = torch.randn(7, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(0), requires_grad=True)
    w = torch.randn(9, 4, dtype=torch.float64, generator=torch.Generator().manual_seed(1), requires_grad=True)
    targets = torch.tensor([0, 8, 3, 3, 1, 5, 2])
    log_probs, entropy = scoring._Scored.apply(x, w, targets, 0.5, scoring.VocabularyRanks())
    weights = torch.arange(7.0)
    (log_probs * weights).sum().backward()
    ours = x.grad, w.grad
    x.grad = w.grad = None
    scores = (x @ w.t()) * 0.5
    (scores.log_softmax(-1).gather(1, targets[:, None])[:, 0] * weights).sum().backward()
    torch.testing.assert_close(ours[0], x.grad, rtol=1e-5, atol=1e-6)
    torch.testing.assert_close(ours[1], w.grad, rtol=1e-5, atol=1e-6)
    expected = torch.distributions.Categorical(logits=scores.detach()).entropy()
    torch.testing.assert_close(entropy.double(), expected, rtol=1e-5, atol=1e-5)


def test_bf16_trains_to_about_the_same_loss() -> None:
    items = sequences(12)
    losses = []
    for precision in ("fp32", "bf16"):
        trainer = trainer_of("llama", precision=precision, large=False)
        batches = pack_sequences(items, row_tokens=30, num_rows=2, device=CPU, dtype=trainer.dtype)
        losses.append([float(trainer.update(batches, ResponseLoss()).loss) for _ in range(5)])
    assert losses[1] == pytest.approx(losses[0], rel=0.02)


@pytest.mark.parametrize("lora", [False, True])
def test_a_trainer_goes_on_from_its_checkpoint(tmp_path: Path, lora: bool) -> None:
    losses, resumed = train_and_go_on("llama", "dp=1", str(tmp_path), lora=lora)
    assert resumed == losses[2:]


def test_bad_sequences_weights_and_layouts_are_refused() -> None:
    with pytest.raises(ConfigError, match="empty response"):
        batches_of([TokenSequence([1], [])])
    with pytest.raises(ConfigError, match="a row holds 31"):
        batches_of([TokenSequence([1] * 30, [2] * 2)])
    trainer = trainer_of("llama")
    with pytest.raises(ConfigError, match="lacks"):
        trainer.load_weights([], where="an empty file")
    with pytest.raises(ConfigError, match="3 x 4"):
        trainer.load_weights([("layers.0.attention.qkv.weight", torch.ones(3, 4))], where="a file")
    with pytest.raises(ConfigError, match="no weight of this model"):
        trainer.load_weights([("layers.9.attention.qkv.weight", torch.ones(3, 4))], where="a file")
    long = pack_sequences([TokenSequence([1] * 40, [2] * 20)], row_tokens=64, device=CPU)
    with pytest.raises(ConfigError, match="59 tokens"):
        trainer.log_probs(long[0])
    with pytest.raises(ConfigError, match="pp=2"):
        open_trainer(SHAPES["llama"], parse_layout("pp=2"), device=CPU)
    with pytest.raises(ConfigError, match="at least one micro-batch"):
        trainer.update([], ResponseLoss())
    with pytest.raises(ConfigError, match="one for each"):
        batches_of(sequences(2))[0].per_token([[0.0], [0.0] * 99])
