"""Jinja templates: placeholders become inert words of the same length, so that every column stays in place."""

from __future__ import annotations

import re

_SUFFIXES = (".j2", ".jinja", ".jinja2")
_EXPRESSION = re.compile(r"(?<!\$)\{\{-?\s*[A-Za-z_\"'(].{0,1000}?\}\}", re.DOTALL)
_STATEMENT = re.compile(
    r"\{%[-+]?\s*(?:if|elif|else|endif|for|endfor|set|endset|include|import|from|block|endblock|extends|macro|endmacro|"
    r"call|endcall|raw|endraw|with|endwith|filter|endfilter|do)\b.{0,1000}?%\}",
    re.DOTALL,
)
_COMMENT = re.compile(r"(?<!\$)\{#.{0,5000}?#\}", re.DOTALL)
_INERT = "_"


def is_template(text: str, name: str) -> bool:
    """Whether a file is a Jinja template: by its name, or because it holds an expression or a statement of Jinja."""
    if name.endswith(_SUFFIXES):
        return True
    has_expression = "{{" in text and _EXPRESSION.search(text) is not None
    return has_expression or ("{%" in text and _STATEMENT.search(text) is not None)


def mask_template(text: str) -> str:
    """`text` with expressions as inert words, statements and comments as blanks; length and lines stay the same."""
    text = _COMMENT.sub(lambda m: _blank(m.group(), " "), text)
    text = _STATEMENT.sub(lambda m: _blank(m.group(), " "), text)
    return _EXPRESSION.sub(lambda m: _blank(m.group(), _INERT), text)


def _blank(text: str, filler: str) -> str:
    return "".join(c if c in "\r\n" else filler for c in text)
