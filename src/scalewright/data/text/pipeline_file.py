"""A pipeline file: what is read, how it is cleaned, deduplicated, tokenised and shuffled, and what is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Literal, Self

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from scalewright import units
from scalewright.errors import QuantityError
from scalewright.records.loader import load_toml

KIND = "data-pipeline"
InputFormat = Literal["auto", "jsonl", "parquet", "warc", "text", "tar"]
OutputFormat = Literal["megatron", "npy", "parquet", "jsonl", "tar"]
RuleName = Literal[
    "length", "words", "word_length", "symbols", "lines", "alphabetic", "stop_words", "repeated_lines",
    "repeated_ngrams", "end_of_line", "short_lines", "braces", "placeholder", "language",
    "gopher_quality", "gopher_repetition", "c4", "fineweb",
]  # fmt: skip
SpanUnit = Literal["word", "byte"]
LEAST_SPAN = 8
TOKEN_FORMATS = ("megatron", "npy")


def _size(value: object) -> object:
    """A size in words, such as "64 MiB", as bytes."""
    if not isinstance(value, str):
        return value
    try:
        return round(units.parse(value, units.BYTES))
    except QuantityError as error:
        raise ValueError(str(error)) from error


Size = Annotated[int, BeforeValidator(_size, json_schema_input_type=str), Field(gt=0)]
Frac = Annotated[float, Field(ge=0, le=1)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, populate_by_name=True)


class ReadStep(_Table):
    """Where documents come from."""

    paths: tuple[str, ...] = Field(min_length=1)
    """Files, folders or patterns, relative to the pipeline file."""
    format: InputFormat = "auto"
    """auto: by the ends of the names. gzip and zstd are seen in any of them."""
    text_field: str = "text"
    """The key or column that holds the text."""
    url_field: str = "url"
    """The key or column that holds the address; documents without one are never duplicates by URL."""
    text_unit: Literal["file", "line", "paragraph"] = "file"
    """What one document is in a plain text file."""
    chunk: Size = 32 * units.MIB
    """Bytes of input that one task takes. Part of the result's identity: order does not depend on it, files do."""
    max_document: Size = 8 * units.MIB
    """A longer document or line is counted and left out."""


class NormaliseStep(_Table):
    """How the characters of a text are made alike."""

    unicode: Literal["NFC", "NFKC", "none"] = "NFC"
    line_ends: bool = True
    """\\r\\n and \\r become \\n."""
    control: bool = True
    """Control characters go, except tab and new line."""
    spaces: bool = True
    """Spaces at the ends of lines go, and three or more empty lines become one."""


class FilterStep(_Table):
    """One rule, or one function of the user. A document that breaks it is left out."""

    rule: RuleName | None = None
    callable: str = ""
    """FILE.py:FUNCTION; called with the text and its URL. False or a reason drops the document; True keeps it."""
    minimum: float | None = None
    """The smallest value allowed; None: the rule's own."""
    maximum: float | None = None
    """The largest value allowed; None: the rule's own."""
    languages: tuple[str, ...] = ()
    """For `language`: two-letter codes to keep."""

    @model_validator(mode="after")
    def _one_kind(self) -> Self:
        if (self.rule is None) == (not self.callable):
            raise ValueError("a filter has a rule or a callable; give one of the two")
        if self.callable and ":" not in self.callable:
            raise ValueError(f"{self.callable!r} has no function; write FILE.py:FUNCTION")
        if self.rule == "language" and not self.languages:
            raise ValueError('the rule language needs the codes to keep, such as languages = ["en"]')
        if self.rule != "language" and self.languages:
            raise ValueError('only rule = "language" takes languages')
        if self.minimum is not None and self.maximum is not None and self.minimum > self.maximum:
            raise ValueError(f"minimum {self.minimum:g} is above maximum {self.maximum:g}")
        return self

    @property
    def name(self) -> str:
        return self.rule or f"callable {self.callable.rpartition(':')[2]}"


class NearDuplicates(_Table):
    """MinHash and LSH over n-grams of words."""

    jaccard: Annotated[float, Field(gt=0.2, le=1)] = 0.8
    """Documents as alike as this, or more, are duplicates."""
    ngram: int = Field(default=5, ge=1, le=50)
    unit: Literal["word", "byte"] = "word"
    """byte: for languages that do not separate words by spaces."""
    bands: int = Field(default=16, ge=1, le=64)
    rows: int = Field(default=6, ge=1, le=32)
    """Hashes of a band: a pair is looked at if all hashes of one band agree."""


class DeduplicateStep(_Table):
    """Which documents count as the same. The first one in the order of the input stays."""

    exact: bool = True
    url: bool = False
    near: NearDuplicates | None = None
    spans: int = Field(default=0, ge=0, le=100_000)
    """Runs of at least so many words that an earlier place has are cut out; 0: none."""
    span_unit: SpanUnit = "word"
    """byte: for languages that do not separate words by spaces; `spans` then counts bytes."""

    @model_validator(mode="after")
    def _long_enough(self) -> Self:
        if 0 < self.spans < LEAST_SPAN:
            raise ValueError(f"spans = {self.spans}: runs that short are in every text; use {LEAST_SPAN} or more, or 0")
        return self


class DecontaminateStep(_Table):
    """Texts of benchmarks that must not be trained on."""

    paths: tuple[str, ...] = Field(min_length=1)
    """JSON lines, Parquet or text; every text in them counts."""
    fields: tuple[str, ...] = ("text", "question", "prompt", "problem", "input")
    """Keys or columns that hold texts of the benchmark."""
    ngram: int = Field(default=13, ge=3, le=100)
    """Words in a row that a document must share to be left out."""


class TokeniseStep(_Table):
    """How texts become tokens."""

    tokenizer: str
    """A tokenizer.json or its folder; `scalewright data train-tokenizer` makes one."""
    end_of_document: str = ""
    """Token that ends each document; empty: the tokenizer's own (such as <|endoftext|>)."""
    vocab: int | None = Field(default=None, gt=0)
    """Tokens that the model knows. A tokenizer with more is refused."""


class PackStep(_Table):
    """Documents joined and cut into sequences of one length."""

    sequence: int = Field(gt=0, le=2**24)
    """Tokens of a sequence."""
    keep_rest: bool = False
    """Keep the last, shorter sequence of a shard in formats that can hold one (megatron)."""


class ShuffleStep(_Table):
    """The order of the result: a global shuffle of documents, then one of packed sequences in a buffer."""

    documents: bool = True
    buffer: int = Field(default=10_000, ge=0)
    """Sequences in the buffer of the second shuffle; only after packing; 0: none."""


class WriteStep(_Table):
    """What is written."""

    format: OutputFormat
    shard: Size = 128 * units.MIB
    """Bytes of text that one shard is made from."""
    num_shards: int | None = Field(default=None, gt=0, le=100_000)
    """Overrides `shard`."""


class PipelineFile(_Table):
    """A whole pipeline. Every step but `read` and `write` may be left out."""

    schema_: str = Field(alias="schema", default="scalewright.data-pipeline/1")
    seed: int = Field(default=0, ge=0, lt=2**63)
    read: ReadStep
    normalise: NormaliseStep | None = None
    filter: tuple[FilterStep, ...] = ()
    deduplicate: DeduplicateStep | None = None
    decontaminate: DecontaminateStep | None = None
    tokenise: TokeniseStep | None = None
    pack: PackStep | None = None
    shuffle: ShuffleStep | None = None
    write: WriteStep
    num_examples: int = Field(default=3, ge=0, le=20)
    """Examples kept for each reason in the report."""

    @model_validator(mode="after")
    def _fits_together(self) -> Self:
        if self.write.format in TOKEN_FORMATS and self.tokenise is None:
            raise ValueError(f'format = "{self.write.format}" holds tokens: add a [tokenise] table, or write parquet')
        if self.pack is not None and self.tokenise is None:
            raise ValueError("packing joins tokens: add a [tokenise] table")
        if self.pack is not None and self.write.format in ("jsonl", "tar"):
            raise ValueError(f'format = "{self.write.format}" holds texts: packed tokens need megatron, npy or parquet')
        if self.write.format == "npy" and self.pack is None:
            raise ValueError('format = "npy" holds sequences of one length: add [pack] with sequence = 2048, say')
        return self


def load_pipeline(path: Path) -> PipelineFile:
    """The pipeline of a file; one sentence if something in it is wrong."""
    return load_toml(path, PipelineFile, kind=KIND)
