"""The tokenizer of a pipeline: tokens of many texts at once, and the token that ends a document."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from scalewright.data.text.pipeline_file import TokeniseStep
from scalewright.errors import ConfigError, MissingExtraError
from scalewright.records.documents import parse_json, read_text

COMMON_ENDS = ("<|endoftext|>", "<|end_of_text|>", "</s>", "<eos>", "<|eot_id|>", "[SEP]")
SHORT_VOCAB = 65_500
"""Below it Megatron stores a token in two bytes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TextTokenizer:
    """A tokenizer as a pipeline uses it."""

    inner: Any
    """Of the package tokenizers."""
    vocab: int
    end_token: int
    end_name: str

    @property
    def dtype(self) -> type[np.uint16] | type[np.int32]:
        """As Megatron chooses it."""
        return np.uint16 if self.vocab < SHORT_VOCAB else np.int32

    def tokens(self, texts: list[str]) -> list[NDArray[Any]]:
        """The tokens of each text, with the end of the document."""
        encodings = self.inner.encode_batch_fast(texts, add_special_tokens=False)
        return [np.array([*one.ids, self.end_token], self.dtype) for one in encodings]


def tokenizer_path(step: TokeniseStep, folder: Path) -> Path:
    """The tokenizer.json that a pipeline names."""
    place = Path(step.tokenizer).expanduser()
    place = place if place.is_absolute() else folder / place
    path = place / "tokenizer.json" if place.is_dir() else place
    if not path.is_file():
        raise ConfigError(
            f"[tokenise] tokenizer: {path} is not there; give a tokenizer.json or its folder, or make one: "
            "scalewright data train-tokenizer"
        )
    return path


@lru_cache(maxsize=2)
def open_text_tokenizer(step: TokeniseStep, folder: Path) -> TextTokenizer:
    """The tokenizer, checked against the vocabulary of the model."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("text", "tokenizers") from error
    path = tokenizer_path(step, folder)
    try:
        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise ConfigError(f"{path}: is no tokenizer: {error}; copy it again") from error
    inner.no_padding()
    inner.no_truncation()
    vocab = max(inner.get_vocab(with_added_tokens=True).values()) + 1
    if step.vocab is not None and vocab > step.vocab:
        raise ConfigError(
            f"{path}: has tokens up to {vocab - 1}, and the model's vocabulary is {step.vocab}: use the model's own "
            "tokenizer, or correct vocab in [tokenise]"
        )
    name = step.end_of_document or _own_end(path, inner)
    end = inner.token_to_id(name) if name else None
    if end is None:
        missing = f"has no token {name!r}" if name else "does not say which token ends a document"
        raise ConfigError(f"{path}: {missing}; set end_of_document in [tokenise] to one of its tokens")
    return TextTokenizer(inner=inner, vocab=vocab, end_token=int(end), end_name=str(name))


def _own_end(path: Path, inner: Any) -> str:
    """The end of a text in tokenizer_config.json, or else a common name that the tokenizer knows."""
    config = path.parent / "tokenizer_config.json"
    if config.is_file():
        body = parse_json(read_text(config), where=str(config))
        name = body.get("eos_token") if isinstance(body, dict) else None
        name = name.get("content") if isinstance(name, dict) else name
        if isinstance(name, str) and name:
            return name
    return next((one for one in COMMON_ENDS if inner.token_to_id(one) is not None), "")
