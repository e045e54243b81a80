"""Tokenizers of Hugging Face folders, by the package tokenizers: text to tokens and back, and the stop tokens."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scalewright.errors import ConfigError, MissingExtraError
from scalewright.records.documents import parse_json, read_text


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderTokenizer:
    """The tokenizer of a folder."""

    path: Path
    inner: Any
    """Of the package tokenizers."""
    vocab: int

    def prompt(self, text: str) -> tuple[int, ...]:
        """The tokens that a model is asked with, with what the tokenizer adds at the start."""
        return tuple(self.inner.encode(text).ids)

    def response(self, text: str) -> tuple[int, ...]:
        """The tokens of a text that goes on: nothing is added."""
        return tuple(self.inner.encode(text, add_special_tokens=False).ids)

    def text(self, tokens: Sequence[int]) -> str:
        """Without marks such as the stop token."""
        return str(self.inner.decode(list(tokens)))

    def token(self, name: str) -> int | None:
        """The id of a token by its name."""
        number = self.inner.token_to_id(name)
        return None if number is None else int(number)


def open_tokenizer(folder: Path, *, vocab: int | None = None) -> FolderTokenizer:
    """The folder's tokenizer. With `vocab`, one with more tokens than the model has is refused."""
    try:
        from tokenizers import Tokenizer
    except ImportError as error:
        raise MissingExtraError("text", "tokenizers") from error
    path = folder / "tokenizer.json"
    if not path.is_file():
        raise ConfigError(
            f"{path} is not there: give a folder with a tokenizer.json, or give prompts as token ids; transformers "
            "writes the file with AutoTokenizer.from_pretrained(FOLDER).save_pretrained(FOLDER)"
        )
    try:
        inner = Tokenizer.from_file(str(path))
    except Exception as error:  # the package raises plain Exception
        raise ConfigError(f"{path}: is no tokenizer: {error}; copy it again") from error
    num = int(inner.get_vocab_size())
    if vocab is not None and num > vocab:
        raise ConfigError(
            f"{path}: has {num} tokens, and the model's vocabulary has {vocab}: use the model's own tokenizer"
        )
    return FolderTokenizer(path=path, inner=inner, vocab=num)


def named_stop_tokens(folder: Path) -> frozenset[int]:
    """Ids that generation_config.json, or else config.json, gives as eos_token_id; none where neither does."""
    for name in ("generation_config.json", "config.json"):
        stop = _content(folder / name).get("eos_token_id")
        if stop is not None:
            return frozenset(int(token) for token in (stop if isinstance(stop, list) else [stop]))
    return frozenset()


def stop_tokens(folder: Path, tokenizer: FolderTokenizer) -> frozenset[int]:
    """Tokens that end an answer: by id in the model's files, or by name in tokenizer_config.json."""
    stops = named_stop_tokens(folder) or _token_by_name(folder, tokenizer, "eos_token")
    if not stops:
        raise ConfigError(
            f"{folder}: no file says which token ends an answer: add eos_token to tokenizer_config.json, or "
            "eos_token_id to generation_config.json"
        )
    if max(stops) >= tokenizer.vocab:
        raise ConfigError(
            f"{folder}: stop token {max(stops)} is not among the {tokenizer.vocab} tokens of its tokenizer.json: copy "
            "the folder again"
        )
    return stops


def pad_token(folder: Path, tokenizer: FolderTokenizer, *, stops: frozenset[int]) -> int:
    """The token behind the end of short sequences. It is never read, so the stop token does where none is named."""
    return min(_token_by_name(folder, tokenizer, "pad_token") or stops)


def _token_by_name(folder: Path, tokenizer: FolderTokenizer, key: str) -> frozenset[int]:
    named = _content(folder / "tokenizer_config.json").get(key)
    name = named.get("content") if isinstance(named, dict) else named
    number = tokenizer.token(name) if isinstance(name, str) else None
    return frozenset() if number is None else frozenset({number})


def _content(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    content = parse_json(read_text(path), where=str(path))
    if not isinstance(content, dict):
        raise ConfigError(f"{path}: is not a JSON object; copy the model again")
    return content
