"""A byte-level BPE tokenizer trained on the texts of a pipeline."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from pathlib import Path

from scalewright import units
from scalewright.data.text.cleaning.normalise import normalised
from scalewright.data.text.pipeline_file import PipelineFile
from scalewright.data.text.reading.documents import ReadTally
from scalewright.data.text.reading.inputs import input_files, plan_chunks, read_part
from scalewright.errors import ConfigError, MissingExtraError
from scalewright.records.documents import write_text

END_TOKEN = "<|endoftext|>"
LEAST_VOCAB = 257
"""Every byte, and the end of a document."""
SAMPLE_BYTES = 100 * units.MIB


def sampled_texts(pipeline: PipelineFile, folder: Path, sample_bytes: int) -> Iterator[str]:
    """About so many bytes of texts from everywhere in the input; the same ones each time."""
    files = input_files(pipeline.read, folder=folder)
    chunks = plan_chunks(files, pipeline.read)
    share = min(1.0, sample_bytes / max(sum(file.num_bytes for file in files), 1))
    tally = ReadTally()
    for chunk in chunks:
        for part in chunk:
            for one in read_part(part, pipeline.read, tally):
                rank = int.from_bytes(hashlib.blake2b(one.origin.encode(), digest_size=4).digest(), "little") / 2**32
                if rank <= share:
                    yield one.text if pipeline.normalise is None else normalised(one.text, pipeline.normalise)


def train_tokenizer(pipeline: PipelineFile, folder: Path, target: Path, *, vocab: int, sample_bytes: int) -> int:
    """Train and write TARGET/tokenizer.json, and a file that names its last token; returns the vocabulary's size."""
    if vocab < LEAST_VOCAB:
        raise ConfigError(f"--vocab {vocab}: a byte-level tokenizer needs {LEAST_VOCAB} or more")
    try:
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    except ImportError as error:
        raise MissingExtraError("text", "tokenizers") from error
    path = target / "tokenizer.json"
    if path.exists():
        raise ConfigError(f"{path}: is there already; choose another --out")
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab, special_tokens=[END_TOKEN], initial_alphabet=alphabet, show_progress=False
    )
    inner.train_from_iterator(sampled_texts(pipeline, folder, sample_bytes), trainer)
    size = int(inner.get_vocab_size())
    if size == LEAST_VOCAB and vocab > LEAST_VOCAB:
        raise ConfigError("the inputs hold no text to train on; check [read] in the pipeline file")
    config = {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "eos_token": END_TOKEN,
        "clean_up_tokenization_spaces": False,
    }
    write_text(target / "tokenizer_config.json", json.dumps(config, indent=2) + "\n")
    write_text(path, inner.to_str())
    return size
