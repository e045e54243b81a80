"""Markdown that the generated pages share: tables and text inside them."""

from __future__ import annotations

import re
from collections.abc import Sequence


def table(head: tuple[str, ...], rows: Sequence[tuple[str, ...]], *, left: int = 1) -> str:
    """A Markdown table whose first `left` columns are left-aligned and the others right-aligned."""
    rule = ["---" if i < left else "--:" for i in range(len(head))]
    return "\n".join("| " + " | ".join(cells) + " |" for cells in (head, rule, *rows)) + "\n"


def cell(text: str) -> str:
    """Text as it stands in a Markdown table."""
    return "".join(
        part if part.startswith("`") else re.sub(r"([|*_<\[])", r"\\\1", part) for part in re.split(r"(`[^`]*`)", text)
    )
