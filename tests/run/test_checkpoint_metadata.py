"""Metadata of distributed checkpoints: read as PyTorch reads it, but without calling anything that it names."""

from __future__ import annotations

import os
import pickle
from dataclasses import replace
from pathlib import Path, PosixPath
from typing import Any

import pytest
import torch
from torch.distributed.checkpoint.filesystem import FileSystemReader, FileSystemWriter
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, ChunkStorageMetadata, Metadata, TensorProperties
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import save

from scalewright.errors import DocumentError
from scalewright.run.checkpoint_metadata import SafeReader, read_metadata

TENSORS = {
    "weight": torch.arange(12, dtype=torch.float32).reshape(3, 4),
    "half": torch.ones(5, dtype=torch.bfloat16),
    "rank-0.rng": torch.arange(7, dtype=torch.uint8),
    "scalar": torch.tensor(2.5),
}
SHARD = "__0_0.distcp"
pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is disabled:UserWarning")


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("checkpoint")
    save(dict(TENSORS), storage_writer=FileSystemWriter(folder), no_dist=True)
    return folder


@pytest.fixture
def metadata(saved: Path) -> Metadata:
    return FileSystemReader(saved).read_metadata()


def written(path: Path, content: object) -> Path:
    path.write_bytes(pickle.dumps(content))
    return path


def test_metadata_is_what_pytorch_reads(saved: Path, metadata: Metadata) -> None:
    own = read_metadata(saved / ".metadata", {SHARD})
    assert own.state_dict_metadata == metadata.state_dict_metadata
    assert list(own.storage_data) == list(metadata.storage_data)
    for index, location in metadata.storage_data.items():
        mine = own.storage_data[index]
        assert (mine.relative_path, mine.offset, mine.length) == (SHARD, location.offset, location.length)


def test_tensors_come_back(saved: Path) -> None:
    reader = SafeReader(saved, files={SHARD})
    assert set(reader.tensor_names) == set(TENSORS)
    targets = {name: torch.zeros_like(tensor) for name, tensor in TENSORS.items()}
    load(targets, storage_reader=reader, no_dist=True)
    assert all(torch.equal(targets[name], tensor) for name, tensor in TENSORS.items())


class Call:
    """Pickled as a call of `function`."""

    def __init__(self, function: Any, *arguments: Any) -> None:
        self.call = function, arguments

    def __reduce__(self) -> tuple[Any, ...]:
        return self.call


CHANGED_CLASS = (
    b"\x80\x02ctorch.distributed.checkpoint.metadata\nChunkStorageMetadata\n"  # push the class
    b"N}U\x05sizesK\x07s\x86b."  # and set its attribute `sizes` to 7
)


@pytest.mark.parametrize(
    ("planted", "name"),
    [
        (Call(os.system, "false"), "posix.system"),
        (Call(eval, "1"), "builtins.eval"),
        (Call(torch.load, "x"), "torch.serialization.load"),
        (Call(torch.compile, "x"), "torch.compile"),
        (os.system, "posix.system"),
        (BytesStorageMetadata(), "torch.distributed.checkpoint.metadata.BytesStorageMetadata"),
    ],
)
def test_names_that_a_checkpoint_does_not_need_are_refused(
    tmp_path: Path, metadata: Metadata, planted: object, name: str
) -> None:
    path = written(tmp_path / ".metadata", replace(metadata, planner_data={"deep": [planted]}))
    with pytest.raises(DocumentError) as refused:
        read_metadata(path, {SHARD})
    assert str(refused.value) == (
        f"{tmp_path}: is refused: its .metadata wants to load {name}, which a checkpoint does not need and "
        "which could run code; use a checkpoint that you trust"
    )


def test_calls_that_every_checkpoint_holds_are_not_made(tmp_path: Path, metadata: Metadata) -> None:
    """Of a path, and of getattr, by which Python before 3.11.4 writes the member of an enumeration."""
    planted = Call(getattr, Call(PosixPath, "/"), "no such attribute")
    with pytest.raises(AttributeError):
        pickle.loads(pickle.dumps(planted))
    path = written(tmp_path / ".metadata", replace(metadata, planner_data=planted))
    assert read_metadata(path, {SHARD}).state_dict_metadata == metadata.state_dict_metadata


def test_a_class_is_not_changed(tmp_path: Path) -> None:
    """A plain unpickler sets the attribute of the class; here the pickle is refused and the class stays."""
    (tmp_path / ".metadata").write_bytes(CHANGED_CLASS)
    with pytest.raises(DocumentError, match="is not the metadata of a checkpoint"):
        read_metadata(tmp_path / ".metadata", {SHARD})
    assert not hasattr(ChunkStorageMetadata, "sizes")


@pytest.mark.parametrize(
    "change",
    [
        lambda m: m.storage_data.update({i: replace(p, relative_path="../x") for i, p in m.storage_data.items()}),
        lambda m: m.storage_data.update({i: replace(p, length=-1) for i, p in m.storage_data.items()}),
        lambda m: m.storage_data.update({i: replace(p, offset="0") for i, p in m.storage_data.items()}),
        lambda m: m.storage_data.update(
            {i: replace(p, transform_descriptors=["a"]) for i, p in m.storage_data.items()}
        ),
        lambda m: setattr(m, "storage_data", [1, 2]),
        lambda m: m.state_dict_metadata.update(weight=TensorProperties()),
        lambda m: m.state_dict_metadata.update(weight=replace(m.state_dict_metadata["weight"], size=(3, 4))),
        lambda m: m.state_dict_metadata.update(weight=replace(m.state_dict_metadata["weight"], chunks=[1])),
    ],
)
def test_metadata_of_another_shape_is_refused(tmp_path: Path, metadata: Metadata, change: Any) -> None:
    change(metadata)
    with pytest.raises(DocumentError, match="is not the metadata of a checkpoint"):
        read_metadata(written(tmp_path / ".metadata", metadata), {SHARD})


@pytest.mark.parametrize("content", [b"", b"\x80", b"not a pickle", pickle.dumps([1])])
def test_anything_else_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / ".metadata").write_bytes(content)
    with pytest.raises(DocumentError, match="is not the metadata of a checkpoint"):
        read_metadata(tmp_path / ".metadata", {SHARD})
    with pytest.raises(DocumentError, match="cannot be read: No such file"):
        read_metadata(tmp_path / "missing" / ".metadata", {SHARD})
