"""The language of a text, by the package py3langid, from its first characters."""

from __future__ import annotations

from functools import lru_cache
from typing import Any

from scalewright.errors import ConfigError, MissingExtraError, UnknownNameError

LOOKED_AT = 1500
"""Characters that decide: more changes few answers and takes longer."""


@lru_cache(maxsize=1)
def _langid() -> Any:
    """The module; it loads its model when first asked."""
    try:
        from py3langid import langid
    except ImportError as error:
        raise MissingExtraError("text", "py3langid") from error
    return langid


def check_languages(codes: tuple[str, ...]) -> None:
    """Refuse a code that the package cannot name."""
    known = [str(code) for code, _ in _langid().rank("a text")]
    for code in codes:
        if code not in known:
            raise UnknownNameError("language", code, known, hint="use two-letter codes such as en, de, fr")
    if not codes:
        raise ConfigError('languages is empty: name the codes to keep, such as ["en"]')


def language_of(text: str) -> str:
    """Two letters such as en."""
    code: str = _langid().classify(text[:LOOKED_AT])[0]
    return code
