"""A tokenizer folder with one token a word, and a stand-in for the package tokenizers where it is not installed."""

from __future__ import annotations

import importlib.util
import json
import re
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

MARKS = ["<pad>", "<eos>", "<unk>"]
WORDS = [*MARKS, *(str(number) for number in range(100)), "+", "-", "=", "is", "what", "?", "sum", "the", "of", "and"]


def write_folder(folder: Path, **config: Any) -> Path:
    """tokenizer.json and tokenizer_config.json, as transformers writes them."""
    folder.mkdir(exist_ok=True)
    added = [
        {"id": number, "content": name, "special": True, "single_word": False, "lstrip": False, "rstrip": False,
         "normalized": False}
        for number, name in enumerate(MARKS)
    ]  # fmt: skip
    content = {
        "version": "1.0", "truncation": None, "padding": None, "added_tokens": added, "normalizer": None,
        "pre_tokenizer": {"type": "Whitespace"}, "post_processor": None, "decoder": None,
        "model": {"type": "WordLevel", "vocab": {word: place for place, word in enumerate(WORDS)},
                  "unk_token": "<unk>"},
    }  # fmt: skip
    (folder / "tokenizer.json").write_text(json.dumps(content))
    named = {"eos_token": "<eos>", "pad_token": {"content": "<pad>"}, **config}
    (folder / "tokenizer_config.json").write_text(json.dumps(named))
    return folder


class WordTokenizer:
    """What is used of tokenizers.Tokenizer, for tokenizer.json files of words."""

    def __init__(self, content: dict[str, Any]) -> None:
        self.ids = content["model"]["vocab"]
        self.names = {number: word for word, number in self.ids.items()}
        self.special = {mark["id"] for mark in content["added_tokens"] if mark["special"]}

    @classmethod
    def from_file(cls, path: str) -> WordTokenizer:
        return cls(json.loads(Path(path).read_text()))

    def get_vocab_size(self) -> int:
        return len(self.ids)

    def token_to_id(self, name: str) -> int | None:
        return self.ids.get(name)

    def encode(self, text: str, *, add_special_tokens: bool = True) -> SimpleNamespace:
        words = re.findall(r"<\w+>|\w+|[^\w\s]+", text)
        return SimpleNamespace(ids=[self.ids.get(word, self.ids["<unk>"]) for word in words])

    def decode(self, tokens: list[int]) -> str:
        return " ".join(self.names[token] for token in tokens if token not in self.special)


def ensure_package(monkeypatch: pytest.MonkeyPatch) -> None:
    """The real package where it is installed: then these tests run against it."""
    if importlib.util.find_spec("tokenizers") is None:
        package = ModuleType("tokenizers")
        package.Tokenizer = WordTokenizer  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "tokenizers", package)
