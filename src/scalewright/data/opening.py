"""Open a data set of any format."""

from __future__ import annotations

from pathlib import Path

from scalewright.data.folder import FolderSamples
from scalewright.data.lmdb_store import DATA_FILE, LmdbSamples
from scalewright.data.samples import Samples
from scalewright.data.shards import READ_BYTES, ShardSamples
from scalewright.errors import ConfigError, DocumentError


def open_samples(path: Path, *, io_bytes: int = READ_BYTES) -> Samples:
    """The data set at `path`: an LMDB folder, a folder of tar shards, or class folders of images.

    `io_bytes` is the size of a sequential read of shards.
    """
    if not path.exists():
        raise ConfigError(f"{path}: no such data set; check the path")
    if not path.is_dir():
        raise ConfigError(f"{path}: is a file; a data set is a folder of classes, of tar shards or of an LMDB")
    try:
        if (path / DATA_FILE).exists():
            return LmdbSamples(path)
        if any(path.glob("*.tar")):
            return ShardSamples(path, io_bytes=io_bytes)
        return FolderSamples(path)
    except OSError as error:
        raise DocumentError(f"{path}: the data set cannot be read: {error.strerror}; check its permissions") from error
