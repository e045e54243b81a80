"""A checkpoint that tries to run code when it is loaded: it is refused in one sentence, and nothing of it runs."""

from __future__ import annotations

import io
import json
import pickle
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, MetadataIndex

from scalewright.records.documents import write_document
from scalewright.records.run_directory import RunDirectory
from scalewright.run.checkpoint_files import CheckpointManifest, FileSum, file_sum, read_manifest

pytestmark = pytest.mark.ranks

Cli = Callable[..., subprocess.CompletedProcess[str]]
TRAIN = [
    "bench", "language", "--model", "layers=1,hidden=16,heads=2,seq=8,vocab=32", "--device", "cpu", "--system",
    "discoverer", "--budget", "60 min", "--layout", "mbs=1,gbs=1", "--steps", "4", "--checkpoint-every", "2",
    "--keep", "2",
]  # fmt: skip


class Attack:
    """Makes a file when it is unpickled by somebody who loads whatever a pickle names."""

    def __init__(self, trace: Path) -> None:
        self.trace = trace

    def __reduce__(self) -> tuple[Any, ...]:
        return Path.touch, (self.trace,)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, shared_cli_with_ranks: Cli) -> Path:
    """A run that was stopped after its checkpoint of step 2."""
    path = tmp_path_factory.mktemp("trained") / "run"
    done = shared_cli_with_ranks(*TRAIN, "--run-dir", str(path))
    assert done.returncode == 0, done.stderr
    shutil.rmtree(RunDirectory(path).checkpoint(4))
    RunDirectory(path).exit_info.unlink()
    return path


@pytest.fixture
def run(trained: Path, tmp_path: Path) -> RunDirectory:
    shutil.copytree(trained, tmp_path / "run")
    return RunDirectory(tmp_path / "run")


def refusal(result: subprocess.CompletedProcess[str]) -> str:
    """The one sentence after the line that says how long the run will take."""
    assert (result.returncode, result.stdout) == (2, ""), result.stderr
    prediction, message = result.stderr.splitlines()
    assert prediction.startswith("predicted ")
    assert message.startswith("error: ")
    return message


def replace_file(folder: Path, name: str, content: bytes) -> None:
    """Replace a file of a checkpoint and make the manifest match it."""
    (folder / name).write_bytes(content)
    old = read_manifest(folder)
    files = old.files | {name: file_sum(folder / name)}
    manifest = CheckpointManifest(
        step=old.step, layout=old.layout, world_size=old.world_size, state=old.state, files=files
    )
    write_document(folder / "manifest.json", manifest.document())


def attack_metadata(folder: Path, trace: Path) -> None:
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    metadata.planner_data = Attack(trace)
    replace_file(folder, ".metadata", pickle.dumps(metadata))


def attack_shard(folder: Path, trace: Path, *, as_bytes: bool) -> None:
    """Put the attack where all tensors lie; as bytes, PyTorch would load it without `weights_only`."""
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    payload = io.BytesIO()
    torch.save(Attack(trace), payload)
    for location in metadata.storage_data.values():
        location.offset, location.length = 0, payload.tell()
    if as_bytes:
        metadata.state_dict_metadata = dict.fromkeys(metadata.state_dict_metadata, BytesStorageMetadata())
        metadata.storage_data = {MetadataIndex(index.fqn): place for index, place in metadata.storage_data.items()}
    replace_file(folder, "__0_0.distcp", payload.getvalue())
    replace_file(folder, ".metadata", pickle.dumps(metadata))


def test_the_attack_works_on_a_reader_that_trusts_it(run: RunDirectory, tmp_path: Path) -> None:
    attack_metadata(run.checkpoint(2), tmp_path / "trace")
    pickle.loads((run.checkpoint(2) / ".metadata").read_bytes())
    assert (tmp_path / "trace").exists()


def test_hostile_metadata_does_not_run_on_resume(run: RunDirectory, tmp_path: Path, cli: Cli) -> None:
    attack_metadata(run.checkpoint(2), tmp_path / "trace")
    message = refusal(cli(*TRAIN, "--run-dir", str(run.path)))
    assert not (tmp_path / "trace").exists()
    assert f"{run.checkpoint(2)}: is refused: its .metadata wants to load " in message
    assert "use a checkpoint that you trust" in message


@pytest.mark.parametrize("kind", ["metadata", "shard", "bytes"])
def test_hostile_checkpoint_does_not_run_with_start_from(
    run: RunDirectory, tmp_path: Path, cli: Cli, kind: str
) -> None:
    folder, trace = run.checkpoint(2), tmp_path / "trace"
    if kind == "metadata":
        attack_metadata(folder, trace)
    else:
        attack_shard(folder, trace, as_bytes=kind == "bytes")
    message = refusal(cli(*TRAIN, "--start-from", str(folder), "--run-dir", str(tmp_path / "new")))
    assert not trace.exists()
    assert f"{folder}: is refused: " in message
    assert "which could run code; use a checkpoint that you trust" in message


def test_a_consistent_checkpoint_that_cannot_be_read_is_left_for_the_one_before(
    trained: Path, tmp_path: Path, cli: Cli
) -> None:
    """Its files match the manifest, so only loading shows that they hold no tensors."""
    shutil.copytree(trained, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    shutil.copytree(run.checkpoint(2), run.checkpoint(3))
    replace_step(run.checkpoint(3), 3)
    replace_file(run.checkpoint(3), "__0_0.distcp", b"")
    done = cli(*TRAIN, "--run-dir", str(run.path))
    assert done.returncode == 0, done.stderr
    events = run.rank_events(0).read_text()
    assert "from step-00000002" in events
    assert "skipped:" in events
    assert "cannot be read" in events


def test_a_changed_step_is_refused(trained: Path, tmp_path: Path, cli: Cli) -> None:
    shutil.copytree(trained, tmp_path / "run")
    path = RunDirectory(tmp_path / "run").checkpoint(2) / "manifest.json"
    path.write_text(path.read_text().replace('"step": 2', '"step": 4'))
    assert "was changed after it was written" in refusal(cli(*TRAIN, "--run-dir", str(tmp_path / "run")))


def test_steps_without_updates_are_refused(trained: Path, tmp_path: Path, cli: Cli) -> None:
    """The manifest says step 3 with a digest that fits, and the state has the updates of step 2."""
    shutil.copytree(trained, tmp_path / "run")
    run = RunDirectory(tmp_path / "run")
    run.checkpoint(2).rename(run.checkpoint(3))
    replace_step(run.checkpoint(3), 3)
    assert "2 updates in 3 steps" in refusal(cli(*TRAIN, "--run-dir", str(run.path)))


def replace_step(folder: Path, step: int) -> None:
    """The manifest of another step, as if it had been saved then."""
    old = json.loads((folder / "manifest.json").read_text())
    files = {name: FileSum(num_bytes=one["bytes"], sha256=one["sha256"]) for name, one in old["files"].items()}
    manifest = CheckpointManifest(
        step=step, layout=old["layout"], world_size=old["world_size"], state=old["state"], files=files
    )
    write_document(folder / "manifest.json", manifest.document())
