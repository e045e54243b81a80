"""What the ranks of the pool do. Each function runs on every rank of a mesh."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import torch
import torch.distributed as dist
from torch import Tensor, nn

from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint import Checkpointer
from scalewright.run.generate.open import checkpoint_weights, open_engine
from scalewright.run.generate.options import EngineOptions, WeightPrecision
from scalewright.run.generate.requests import Request, Sampling
from scalewright.run.language.optimizer import local
from scalewright.run.language.session import LanguageSession, open_language_session
from scalewright.run.vision.loader import ImageBatch
from scalewright.run.vision.session import open_vision_session
from scalewright.run.vision.step import MeanLoss
from scalewright.run.vision.validate import validate
from scalewright.workload import vision_run
from scalewright.workload.language_run import LanguageRun, from_document


def train(document: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step."""
    session = open_language_session(from_document(document, where="the test's configuration"), torch.device("cpu"))
    return _steps(session, 0, session.run.steps)


def train_and_save(document: dict[str, Any], folder: str) -> list[tuple[float, float]]:
    """Train, then save what was reached."""
    run = from_document(document, where="the test's configuration")
    session = open_language_session(run, torch.device("cpu"))
    seen = _steps(session, 0, run.steps)
    saver = Checkpointer(RunDirectory(Path(folder)), keep=2, layout=run.layout.brief)
    saver.save_async(run.steps, session.optimizer.state(), {"num_updates": session.optimizer.num_updates})
    saver.finish()
    saver.close()
    return seen


def load_and_train(document: dict[str, Any], folder: str, steps: int) -> list[tuple[float, float]]:
    """Take up a checkpoint, perhaps of another layout, and go on."""
    run: LanguageRun = replace(from_document(document, where="the test's configuration"), steps=steps)
    session = open_language_session(run, torch.device("cpu"))
    saver = Checkpointer(RunDirectory(Path(folder)), keep=2, layout=run.layout.brief)
    loaded = saver.load_newest(session.optimizer.state())
    assert loaded is not None
    session.optimizer.refresh_weights()
    session.optimizer.num_updates = loaded.manifest.state["num_updates"]
    saver.close()
    return _steps(session, loaded.manifest.step, steps)


def _steps(session: LanguageSession, first: int, last: int) -> list[tuple[float, float]]:
    loader, seen = session.loader(first_step=first), []
    for _ in range(first, last):
        batch = loader.next()
        result = session.step(batch.tokens_BL, batch.targets_BL)
        seen.append((float(result.loss), float(result.grad_norm)))
    loader.close()
    return seen


def train_images(document: dict[str, Any], num_parts: int) -> tuple[list[float], list[Tensor]]:
    """Losses and weights after some steps of drawn images. A rank takes its share; alone, `num_parts` shares one after
    the other, as the ranks would: norms count over a share either way."""
    run = vision_run.from_document(document, where="the test's configuration")
    session, shares = open_vision_session(run, torch.device("cpu")), range(run.num_ranks)
    loss_of, mine = MeanLoss(session.model, run, session.device), torch.distributed.get_rank()
    losses = []
    for step in range(run.steps):
        generator = torch.Generator().manual_seed(step)
        size = (run.batch, run.num_ranks, run.image_size, run.image_size, 3)
        images = torch.randint(256, size, dtype=torch.uint8, generator=generator)
        labels = torch.randint(run.num_classes, (run.batch, run.num_ranks), generator=generator)
        if num_parts == 1:
            losses.append(float(session.step(images[:, mine], labels[:, mine]).loss))
            continue
        session.optimizer.clear()
        part_losses = [loss_of(images[:, share], labels[:, share]) / num_parts for share in shares]
        for loss in part_losses:
            loss.backward()
        session.optimizer.set_rate(step)
        session.optimizer.apply(session.optimizer.gradients())
        losses.append(float(sum(loss.detach() for loss in part_losses)))
    return losses, [param.detach().clone() for param in session.model.parameters()]


def score_images(document: dict[str, Any], num_images: int) -> tuple[float, float, int]:
    """Validation scores over drawn images, every rank its share."""
    run = vision_run.from_document(document, where="the test's configuration")
    session = open_vision_session(run, torch.device("cpu"))
    rank, generator = torch.distributed.get_rank(), torch.Generator().manual_seed(0)
    images = torch.randint(256, (num_images, run.image_size, run.image_size, 3), dtype=torch.uint8, generator=generator)
    labels = torch.randint(run.num_classes, (num_images,), generator=generator)
    for name, buffer in session.model.named_buffers():
        if "running_" in name:
            buffer.add_(float(rank))  # what other ranks counted is not what is scored
    mine = slice(rank, None, torch.distributed.get_world_size())
    scores = validate(session, iter([ImageBatch(images[mine], labels[mine], 0.0)]))
    assert scores is not None
    return scores.loss, scores.top_5_frac, scores.num_images


def train_with_overflow(document: dict[str, Any], bad_step: int, bad_rank: int) -> dict[str, Any]:
    """Train in fp16; in one step, one rank's gradients behind one layer are not finite."""
    session = open_language_session(from_document(document, where="the test's configuration"), torch.device("cpu"))
    return _with_overflow(session, session.split.callables[0], session.run.steps, bad_step, bad_rank, _steps)


def train_images_with_overflow(document: dict[str, Any], bad_step: int, bad_rank: int) -> dict[str, Any]:
    run = vision_run.from_document(document, where="the test's configuration")
    session = open_vision_session(run, torch.device("cpu"))
    return _with_overflow(session, session.model, run.steps, bad_step, bad_rank, _image_steps)


def _with_overflow(
    session: Any, model: nn.Module, steps: int, bad_step: int, bad_rank: int, train: Callable[..., Any]
) -> dict[str, Any]:
    optimizer, scale = session.optimizer, session.train_step.loss_scale
    train(session, 0, bad_step)
    before = {name: local(tensor).clone() for name, tensor in optimizer.state().items()}
    spoiled = next(module for module in model.modules() if isinstance(module, nn.Linear))
    hooks = [spoiled.register_forward_hook(_overflows)] if torch.distributed.get_rank() == bad_rank else []
    train(session, bad_step, bad_step + 1)
    for hook in hooks:
        hook.remove()
    untouched = all(torch.equal(local(tensor), before[name]) for name, tensor in optimizer.state().items())
    after = scale.state()
    train(session, bad_step + 1, steps)
    changed = any(not torch.equal(local(tensor), before[name]) for name, tensor in optimizer.state().items())
    return {"untouched": untouched, "after": after, "changed": changed, "end": scale.state(),
            "num_updates": optimizer.num_updates}  # fmt: skip


def _overflows(module: nn.Module, inputs: Any, output: Tensor) -> None:
    output.register_hook(lambda grad: grad * torch.inf)


def _image_steps(session: Any, first: int, last: int) -> None:
    run = session.run
    for step in range(first, last):
        generator = torch.Generator().manual_seed(step + 100 * torch.distributed.get_rank())
        size = (run.batch, run.image_size, run.image_size, 3)
        images = torch.randint(256, size, dtype=torch.uint8, generator=generator)
        session.step(images, torch.randint(run.num_classes, (run.batch,), generator=generator))


def generate(
    document: dict[str, Any], checkpoint: str, precision: str
) -> list[tuple[str, int, list[int], list[float]]]:
    """Answers of an engine over all ranks, tensor parallel, from the run's seed or from a checkpoint."""
    run = from_document(document, where="the test's configuration")
    device = torch.device("cpu")
    engine = open_engine(
        run.shape,
        EngineOptions(max_context=16, precision=cast(WeightPrecision, precision), max_running=3, prefill_chunk=5),
        device=device,
        weights=checkpoint_weights(Path(checkpoint), device=device) if checkpoint else run.seed,
        group=dist.group.WORLD,
    )
    for number, length in enumerate((1, 3, 9)):
        sampling = Sampling(temperature=float(number % 2), seed=number)
        prompt = tuple(range(2, 2 + length))
        engine.add(Request(id=str(number), prompt=prompt, max_new_tokens=7, num_answers=2, sampling=sampling))
    return sorted((c.request_id, c.index, list(c.tokens), list(c.log_probs)) for c in engine.drain())


def train_sequences(name: str, layout: str, policy: str, options: dict[str, Any]) -> dict[str, Any]:
    """Losses, gradient norms and the weights afterwards of a trainer whose replicas share some sequences."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "run" / "reasoning"))
    from sequence_cases import train_some

    return train_some(name, layout, policy, **options)


def resume_sequences(name: str, layout: str, folder: str, lora: bool) -> list[list[float]]:
    """Losses without and with a stop between."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "run" / "reasoning"))
    from sequence_cases import train_and_go_on

    return train_and_go_on(name, layout, folder, lora=lora)


def sync_sequences(name: str, layout: str, lora: bool, folder: str) -> dict[str, Any]:
    """Publish a trainer's weights from all ranks, and pull them into an engine rank on each, by every way."""
    sys.path.insert(0, str(Path(__file__).parents[1] / "run" / "reasoning"))
    from sequence_cases import trainer_of

    from scalewright.run.generate.safetensor_files import read_header
    from scalewright.run.weight_sync.files import version_folder, weight_file
    from scalewright.run.weight_sync.plan import EngineRank, TrainerLayout
    from scalewright.run.weight_sync.sync import pull_weights
    from scalewright.run.weight_sync.trainer_side import TrainerWeights, held_weights
    from scalewright.workload.reasoning.lora_settings import LoraSettings

    trainer = trainer_of(name, layout=layout, lora=LoraSettings(rank=3) if lora else None)
    if lora:
        for key, param in trainer.stored_parameters().items():
            if key.endswith("lora_b"):
                local(param.detach()).fill_(0.25)
    rank, size = dist.get_rank(), dist.get_world_size()
    whole = {key: tensor.clone() for key, tensor in trainer.named_weights()}
    server = TrainerWeights(trainer, engine_dtype=torch.float32, token="t", folder=Path(folder))
    own, engine = list(held_weights(trainer)), EngineRank(number=rank)
    equal, checksums = {}, []
    for version, way in enumerate(("peers", "broadcast", "file", "peers"), start=5):
        addresses: list[Any] = [None] * size
        dist.all_gather_object(addresses, server.publish(version, way))
        tensors, result = pull_weights(addresses, engine, version, way, token="t", wait_s=10.0)
        equal[way] = all(torch.equal(tensor, whole[key]) for key, tensor in tensors)
        checksums.append(result.checksum)
        dist.barrier()
    degrees = {key: int(value) for key, _, value in (part.partition("=") for part in layout.split(","))}
    planned, written = TrainerLayout(**degrees), version_folder(Path(folder), 7)
    answer = {
        "equal": equal,
        "checksums": checksums,
        "boxes": all(part.box == planned.box(key, part.size, rank) for key, _, part in own),
        "firsts": all(part.is_first == planned.is_first(key, part.size, rank) for key, _, part in own),
        "num_written": sum(one.read().nbytes for one in read_header(weight_file(written, rank)).values()),
        "num_bytes": sum(tensor.nbytes for tensor in whole.values()),
    }
    dist.barrier()
    server.close()
    return answer
