"""TokenSet: one file of tokens, or the files of a folder after each other, cut into windows."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.tokens.files import TokenFile, megatron_tokens, npy_tokens, reading
from scalewright.data.tokens.parquet import ParquetTokens, RowGroupCache
from scalewright.errors import ConfigError

SUFFIXES = (".npy", ".bin", ".parquet")
HINT = "give a .npy file, a Megatron set (.bin with .idx), a Parquet file, or a folder of one of them"


class TokenSet:
    """A row of tokens over one or more files. A window may begin in one file and end in the next."""

    def __init__(self, name: str, files: list[TokenFile]) -> None:
        self.name = name
        self._files = files
        self._ends = np.cumsum([file.num_tokens for file in files], dtype=np.int64)
        self.num_tokens = int(self._ends[-1]) if files else 0

    def read(self, start: int, stop: int) -> NDArray[np.int64]:
        first, last = (int(np.searchsorted(self._ends, place, side="right")) for place in (start, stop - 1))
        parts = []
        for number in range(first, last + 1):
            before = int(self._ends[number - 1]) if number else 0
            end = min(stop - before, self._files[number].num_tokens)
            if end > max(start - before, 0):
                parts.append(self._files[number].read(max(start - before, 0), end))
        return np.concatenate(parts, dtype=np.int64, casting="unsafe")

    def num_windows(self, seq_len: int) -> int:
        """Samples of `seq_len` tokens, each with the token that follows it."""
        return max((self.num_tokens - 1) // seq_len, 0)

    def window_runs(self, seq_len: int) -> list[int]:
        """Windows of each part that is read as a whole; all windows if any place costs the same."""
        ends, before = [0], 0
        for file in self._files:
            ends += [before + end for end in file.run_ends() or ()]
            before += file.num_tokens
        if len(ends) == 1:
            ends.append(before)
        limit = self.num_windows(seq_len)
        cuts = [min(-(-end // seq_len), limit) for end in ends]
        cuts[-1] = limit
        return [last - first for first, last in pairwise(cuts)]


def open_token_set(path: Path) -> TokenSet:
    """The tokens of a file or of a folder's files, in the order of their names."""
    cache = RowGroupCache()
    return TokenSet(str(path), [_opened(file, cache) for file in token_files(path)])


def token_files(path: Path) -> list[Path]:
    """Files of a set: itself, `PATH.bin` for a prefix as Megatron's commands take it, or those of a folder."""
    if path.is_dir():
        return _files_of_folder(path)
    if path.suffix not in (*SUFFIXES, ".idx"):
        prefixed = path.with_name(f"{path.name}.bin")
        if prefixed.is_file():
            return [prefixed]
    if not path.exists():
        raise ConfigError(f"{path}: no such data set; check the path, or use --data synthetic")
    if path.suffix == ".idx":
        return [path.with_suffix(".bin")]
    if path.suffix not in SUFFIXES:
        raise ConfigError(f"{path}: is not a token set that is read here; {HINT}")
    return [path]


def _files_of_folder(folder: Path) -> list[Path]:
    with reading(folder):
        files = sorted(p for p in folder.iterdir() if p.suffix in SUFFIXES and not p.name.startswith("."))
    kinds = sorted({file.suffix for file in files})
    if not kinds:
        raise ConfigError(f"{folder}: holds no token set; {HINT}")
    if len(kinds) > 1:
        raise ConfigError(
            f"{folder}: holds {' and '.join(kinds)} files; name one of them, or keep one kind in a folder"
        )
    return files


def _opened(path: Path, cache: RowGroupCache) -> TokenFile:
    if path.suffix == ".npy":
        return npy_tokens(path)
    return megatron_tokens(path) if path.suffix == ".bin" else ParquetTokens(path, cache)
