"""Texts of benchmarks inside documents: n-grams of words that both have."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.cleaning.text_view import Hashes, TextView, ngram_hashes
from scalewright.data.text.pipeline_file import DecontaminateStep, ReadStep
from scalewright.data.text.reading.documents import ReadTally, batches
from scalewright.data.text.reading.inputs import input_files, plan_chunks, read_part
from scalewright.data.text.reading.tables import num_row_groups
from scalewright.errors import ConfigError


def benchmark_ngrams(step: DecontaminateStep, folder: Path) -> Hashes:
    """Hashes of all n-grams of the benchmarks, sorted."""
    hashes = [np.empty(0, np.uint64)]
    for name in step.fields:
        reading = ReadStep(paths=step.paths, text_field=name)
        for file in input_files(reading, folder=folder):
            if file.format == "text" and name != step.fields[0]:
                continue
            if file.format == "parquet" and not _has_column(Path(file.path), reading):
                continue
            for chunk in plan_chunks([file], reading):
                for batch in batches(one for part in chunk for one in read_part(part, reading, ReadTally())):
                    hashes.append(_ngrams(TextView([one.text.encode() for one in batch]), step.ngram)[0])
    joined = np.unique(np.concatenate(hashes))
    if not len(joined):
        raise ConfigError(
            f"[decontaminate] paths: no text of {step.ngram} words under the keys {', '.join(step.fields)}; "
            "set fields to the keys of the benchmark"
        )
    return joined


def _has_column(path: Path, reading: ReadStep) -> bool:
    try:
        return num_row_groups(path, reading) >= 0
    except ConfigError:
        return False


def _ngrams(view: TextView, num: int) -> tuple[Hashes, NDArray[np.int64]]:
    hashes, first = ngram_hashes(view.plain_word_hashes, view.plain_words.documents, num)
    return hashes, view.plain_words.documents[first]


def shared_ngrams(texts: list[bytes], benchmarks: Hashes, num: int) -> NDArray[np.int64]:
    """How many n-grams of each text a benchmark has."""
    hashes, owners = _ngrams(TextView(texts), num)
    at = np.minimum(np.searchsorted(benchmarks, hashes), len(benchmarks) - 1)
    return np.bincount(owners[benchmarks[at] == hashes], minlength=len(texts))
