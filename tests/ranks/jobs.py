"""What the ranks of the pool do. Each function runs on every rank of a mesh."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint import Checkpointer
from scalewright.run.language.session import Session, open_session
from scalewright.workload.language_run import LanguageRun, from_document


def train(document: dict[str, Any]) -> list[tuple[float, float]]:
    """Loss and gradient norm of every step."""
    session = open_session(from_document(document, where="the test's configuration"), torch.device("cpu"))
    return _steps(session, 0, session.run.steps)


def train_and_save(document: dict[str, Any], folder: str) -> list[tuple[float, float]]:
    """Train, then save what was reached."""
    run = from_document(document, where="the test's configuration")
    session = open_session(run, torch.device("cpu"))
    seen = _steps(session, 0, run.steps)
    saver = Checkpointer(RunDirectory(Path(folder)), keep=2, layout=run.layout.brief)
    saver.save_async(run.steps, session.optimizer.state(), {"num_updates": session.optimizer.num_updates})
    saver.finish()
    saver.close()
    return seen


def load_and_train(document: dict[str, Any], folder: str, steps: int) -> list[tuple[float, float]]:
    """Take up a checkpoint, perhaps of another layout, and go on."""
    run: LanguageRun = replace(from_document(document, where="the test's configuration"), steps=steps)
    session = open_session(run, torch.device("cpu"))
    saver = Checkpointer(RunDirectory(Path(folder)), keep=2, layout=run.layout.brief)
    loaded = saver.load_newest(session.optimizer.state())
    assert loaded is not None
    session.optimizer.refresh_weights()
    session.optimizer.num_updates = loaded.manifest.state["num_updates"]
    saver.close()
    return _steps(session, loaded.manifest.step, steps)


def _steps(session: Session, first: int, last: int) -> list[tuple[float, float]]:
    loader, seen = session.loader(first_step=first), []
    for _ in range(first, last):
        batch = loader.next()
        result = session.step(batch.tokens_BL, batch.targets_BL)
        seen.append((float(result.loss), float(result.grad_norm)))
    loader.close()
    return seen
