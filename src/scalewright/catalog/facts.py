"""A Fact: one number with its unit, kind, source and date. Every value of the catalogue is one."""

from __future__ import annotations

from datetime import date
from typing import Annotated, Any, ClassVar, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, model_validator

from scalewright import units
from scalewright.errors import QuantityError

Kind = Literal["datasheet", "measured", "fitted", "assumed"]
MAX_SIZE = 10**9
"""Of a model or a layout. Larger sizes are slips of the keyboard, and would overflow the arrays."""


class Strict(BaseModel):
    """Frozen, an unknown key is an error, and every number is finite."""

    model_config = ConfigDict(frozen=True, extra="forbid", allow_inf_nan=False)


class Documented(Strict):
    """The docstring under each key becomes its description in the schema for editors."""

    model_config = ConfigDict(use_attribute_docstrings=True)


class Source(Strict):
    """Where values come from. Given once per file under `[sources.KEY]`; values name the key."""

    kind: Kind
    """datasheet: the maker's or operator's own document; measured: somebody ran it; fitted: regressed from
    measured data; assumed: our choice, with the reason in `text`."""
    text: str = Field(min_length=8)
    """Document, table or page: enough to find it again."""
    url: str = ""
    checked: date
    """The day the value was last held against the source (or, if `recalled`, written down)."""
    recalled: bool = False
    """True: written from knowledge of the document, which was not at hand on that day."""
    confidence: Literal["high", "low"] = "high"


class Fact(Strict):
    """One sourced number. `value` is SI; `text` is as written in the file."""

    dimension: ClassVar[units.Dimension]

    value: float
    text: str
    source: Source
    note: str = ""

    @model_validator(mode="before")
    @classmethod
    def _from_file(cls, raw: Any) -> Any:
        if not isinstance(raw, dict) or "value" not in raw:
            return raw
        if "text" in raw:
            raise ValueError("give the value as text with its unit; the key 'text' is not for files")
        written = raw["value"]
        if isinstance(written, bool) or not isinstance(written, int | float | str):
            raise ValueError(f"{written!r} is not a {cls.dimension.name}")
        try:
            value = units.parse(str(written), cls.dimension)
        except QuantityError as error:
            raise ValueError(str(error)) from error
        return {**raw, "value": value, "text": str(written)}

    def __str__(self) -> str:
        return units.format(self.value, self.dimension)


class Bytes(Fact):
    dimension = units.BYTES


class BytesPerS(Fact):
    dimension = units.BYTES_PER_S


class FlopPerS(Fact):
    dimension = units.FLOP_PER_S


class Seconds(Fact):
    dimension = units.SECONDS


class Hertz(Fact):
    dimension = units.HERTZ


class TransfersPerS(Fact):
    dimension = units.TRANSFERS_PER_S


class Watts(Fact):
    dimension = units.WATTS


class Joules(Fact):
    dimension = units.JOULES


class Count(Fact):
    dimension = units.COUNT


class Fraction(Fact):
    dimension = units.FRACTION


class UsdPerS(Fact):
    dimension = units.USD_PER_S


class EurPerS(Fact):
    dimension = units.EUR_PER_S


class UsdPerEur(Fact):
    dimension = units.USD_PER_EUR


class Kgco2ePerJ(Fact):
    dimension = units.KGCO2E_PER_J


class Kgco2e(Fact):
    dimension = units.KGCO2E


def _lower(value: Any) -> Any:
    if isinstance(value, str) and value != value.lower():
        raise ValueError(f"{value!r} must be lower case")
    return value


Id = Annotated[str, BeforeValidator(_lower), Field(pattern=r"^[a-z0-9][a-z0-9.+-]*$")]


UNKNOWN_SOURCE: dict[str, Any] = {"kind": "assumed", "text": "not in [sources]", "checked": date.min}
"""In place of a source that is missing, so that the rest of the file can be checked."""


EXAMPLE_KEY = "example"
EXAMPLE_LINE = f"{EXAMPLE_KEY} = true"
"""What a template has until somebody puts values in. An entry with it is refused: no example is taken as real."""
NOT_FILLED_IN = f"its values are the template's: put yours in, then delete the line {EXAMPLE_LINE}"


def link_sources(raw: dict[str, Any], sources: dict[str, Any] | None = None) -> tuple[dict[str, Any], list[str]]:
    """Replace each `source = "KEY"` by the table `[sources.KEY]`, so that a Fact stands alone; and missing keys."""
    table = raw.get("sources", {}) if sources is None else sources
    if not isinstance(table, dict):
        return raw, ["key 'sources' is not a table: write [sources.NAME] for each source"]
    missing: dict[str, list[str]] = {}

    def walk(node: Any, path: str) -> Any:
        if isinstance(node, dict):
            linked = {k: walk(v, f"{path}.{k}" if path else k) for k, v in node.items()}
            key = linked.get("source")
            if isinstance(key, str):
                linked["source"] = table.get(key, UNKNOWN_SOURCE)
                if key not in table:
                    missing.setdefault(key, []).append(path or "the file")
            return linked
        if isinstance(node, list):
            return [walk(v, f"{path}[{i}]") for i, v in enumerate(node)]
        return node

    linked = {k: (v if k == "sources" else walk(v, k)) for k, v in raw.items() if k != EXAMPLE_KEY}
    problems = [f"{', '.join(at)}: source {key!r} is not in [sources]" for key, at in missing.items()]
    return linked, [*([NOT_FILLED_IN] if raw.get(EXAMPLE_KEY, False) is not False else []), *problems]
