"""The runs that faults are injected into: small models of every benchmark, some seconds each on two cores."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from scalewright.lab.faults.fault import Injection
from scalewright.lab.faults.trial import Trial

NUM_IMAGES, NUM_CLASSES = 160, 8
MODEL = "layers=2,hidden=192,heads=4,seq=64,vocab=512"
TINY_MODEL = "layers=2,hidden=64,heads=2,seq=32,vocab=256"
Command = tuple[str, ...]


def language(
    *more: str, ranks: int = 2, steps: int = 40, mbs: int = 4, gbs: int = 0, model: str = MODEL, layout: str = ""
) -> Command:
    """Pre-training of a language model on synthetic tokens."""
    layout = layout or f"dp={ranks},mbs={mbs},gbs={gbs or mbs * ranks}"
    return (
        "bench", "language", "--model", model, "--layout", layout, "--steps", str(steps), "--device", "cpu",
        "--precision", "fp32", *more,
    )  # fmt: skip


def vision(
    *more: str, ranks: int = 1, steps: int = 14, batch: int = 8, size: int = 64, data: str = "synthetic"
) -> Command:
    """Training of a residual network on images."""
    return (
        "bench", "vision", "--model", "resnet-18", "--size", str(size), "--batch", str(batch), "--ranks", str(ranks),
        "--steps", str(steps), "--device", "cpu", "--precision", "fp32", "--compile", "off", "--data", data,
        *(() if data == "synthetic" else ("--workers", "1")), *more,
    )  # fmt: skip


def sft(*more: str, ranks: int = 1, steps: int = 60, batch: int = 32, traces: int = 512) -> Command:
    """Supervised fine-tuning on traces of the countdown task."""
    return (
        "reason", "sft", "--model", "layers=2,hidden=64,heads=2", "--numbers", "2", "--largest", "11", "--operators",
        "+", "--device", "cpu", "--eval-problems", "0", "--steps", str(steps), "--batch", str(batch), "--num-traces",
        str(traces), "--ranks", str(ranks), "--checkpoint-every", str(steps), *more,
    )  # fmt: skip


def generate(*more: str, ranks: int = 1, num: int = 48, answers: str = "24") -> Command:
    """Answers of the generation engine."""
    return (
        "bench", "generate", "--model", "layers=2,hidden=128,heads=4,vocab=512,seq=512", "--device", "cpu",
        "--prompt-lengths", "16", "--answer-lengths", answers, "--num", str(num), "--ranks", str(ranks), *more,
    )  # fmt: skip


def images(form: str) -> Injection:
    """Photographs of some classes at {data}/FORM, made once: folder, shards or lmdb."""

    def prepare(trial: Trial) -> None:
        from scalewright.data.imagenet_like import ImageSet, make_images

        folder = trial.data / form
        if (folder / "val").exists():
            return
        for name, num, seed in (("train", NUM_IMAGES, 0), ("val", NUM_CLASSES, 1)):
            make_images(
                folder / name, ImageSet(num_images=num, num_classes=NUM_CLASSES, seed=seed), to=form, num_workers=1,  # type: ignore[arg-type]
            )  # fmt: skip

    return prepare


def damaged_images(name: str, *, damage: str, every: int) -> Injection:
    """A copy of the folder of images at {data}/NAME in which some files are cut, emptied or no images."""

    def prepare(trial: Trial) -> None:
        images("folder")(trial)
        folder = trial.data / name
        if folder.exists():
            return
        shutil.copytree(trial.data / "folder", folder)
        for number, path in enumerate(sorted((folder / "train").glob("*/*.jpg"))):
            if number % every == every - 1:
                _damage(path, damage)

    return prepare


def _damage(path: Path, damage: str) -> None:
    content = path.read_bytes()
    path.write_bytes({"cut": content[: len(content) // 3], "empty": b"", "text": b"<html>404</html>"}[damage])


def tokens(name: str, *, num: int, value: int | None = None, vocab: int = 1024) -> Injection:
    """A file of token ids at {data}/NAME; with `value`, all tokens are this one."""

    def prepare(trial: Trial) -> None:
        import numpy as np

        path = trial.data / name
        trial.data.mkdir(parents=True, exist_ok=True)
        drawn = np.random.default_rng(0).integers(0, vocab, num)
        np.save(path, (np.full(num, value) if value is not None else drawn).astype(np.uint32))

    return prepare


def cut_tokens(name: str, *, keep_bytes: int) -> Injection:
    """A file of token ids that was not copied whole."""

    def prepare(trial: Trial) -> None:
        tokens(name, num=50_000)(trial)
        path = trial.data / name
        path.write_bytes(path.read_bytes()[:keep_bytes])

    return prepare


def text_file(name: str, content: str) -> Injection:
    """A file at {data}/NAME."""

    def prepare(trial: Trial) -> None:
        trial.data.mkdir(parents=True, exist_ok=True)
        (trial.data / name).write_text(content)

    return prepare


def prompts(name: str, rows: list[dict[str, object]]) -> Injection:
    return text_file(name, "".join(json.dumps(row) + "\n" for row in rows))
