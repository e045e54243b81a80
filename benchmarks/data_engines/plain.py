"""The baseline: a plain multiprocessing script. Filter, MinHash, tokenise, drop what shares a band, write."""

from __future__ import annotations

import json
import os
import sys
import zlib
from collections.abc import Iterator
from multiprocessing import Pool
from pathlib import Path

import numpy as np

os.environ["TOKENIZERS_PARALLELISM"] = "false"
SOURCE, TOKENIZER, OUT, NUM_WORKERS = Path(sys.argv[1]), sys.argv[2], Path(sys.argv[3]), int(sys.argv[4])
STOP = {"the", "be", "to", "of", "and", "that", "have", "with"}
BANDS, ROWS = 16, 6
RNG = np.random.default_rng(0)
FACTORS = RNG.integers(1, 2**32, BANDS * ROWS, np.uint64) | np.uint64(1)
SHIFTS = RNG.integers(0, 2**32, BANDS * ROWS, np.uint64)
TOKENIZERS = []


def begin() -> None:
    from tokenizers import Tokenizer

    TOKENIZERS.append(Tokenizer.from_file(TOKENIZER))


def is_good(text: str) -> bool:
    """Gopher's rules of quality, written as most people write them."""
    words, lines = text.split(), text.splitlines()
    num = len(words)
    if not 50 <= num <= 100_000 or not 3 <= sum(map(len, words)) / num <= 10:
        return False
    if (text.count("#") + text.count("...")) / num > 0.1:
        return False
    if sum(line.lstrip().startswith(("-", "*", "•")) for line in lines) > 0.9 * len(lines):
        return False
    if sum(line.rstrip().endswith(("...", "…")) for line in lines) > 0.3 * len(lines):
        return False
    if sum(any(c.isalpha() for c in word) for word in words) < 0.8 * num:
        return False
    return len(STOP & set(words)) >= 2


def signature(text: str) -> np.ndarray:
    words = text.lower().split()
    grams = [zlib.crc32(" ".join(words[at : at + 5]).encode()) for at in range(max(1, len(words) - 4))]
    hashes = np.array(grams, np.uint64)[:, None] * FACTORS + SHIFTS
    return (hashes & np.uint64(0xFFFFFFFF)).min(axis=0).astype(np.uint32)


def work(lines: list[str]) -> tuple[list[np.ndarray], list[np.ndarray]]:
    texts = [text for text in (json.loads(line)["text"] for line in lines) if is_good(text)]
    encoded = TOKENIZERS[0].encode_batch_fast(texts, add_special_tokens=False)
    return [signature(text) for text in texts], [np.array(one.ids, np.uint16) for one in encoded]


def chunks() -> Iterator[list[str]]:
    batch: list[str] = []
    with SOURCE.open() as file:
        for line in file:
            batch.append(line)
            if len(batch) >= 100:
                yield batch
                batch = []
    if batch:
        yield batch


def main() -> None:
    seen: set[tuple[int, bytes]] = set()
    with Pool(NUM_WORKERS, begin) as pool, OUT.open("wb") as out:
        for signatures, tokens in pool.imap(work, chunks()):
            for one, ids in zip(signatures, tokens, strict=True):
                keys = [(band, one[band * ROWS : (band + 1) * ROWS].tobytes()) for band in range(BANDS)]
                if not any(key in seen for key in keys):
                    seen.update(keys)
                    ids.tofile(out)


if __name__ == "__main__":
    main()
