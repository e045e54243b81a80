"""Pieces of HTML for a notebook: tables, bars and sentences. Every text is escaped here and nowhere else.

Styles are written into the elements, because notebooks strip style sheets from outputs; colours come from the page, so
that light and dark themes both work.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from html import escape

from scalewright.records.types import warnings_among

CELL = "padding:2px 12px 2px 0;vertical-align:top;border:none;background:none;"
HEAD = f"{CELL}font-weight:600;border-bottom:1px solid currentColor;"
TABLE = "border-collapse:collapse;margin:6px 0 10px 0;"
WRAP = {"left": "pre-wrap", "right": "nowrap"}
"""Numbers stay on one line."""
BAR_WIDTH_PX = 160
MAX_ROWS = 20


def paragraph(text: str, *, bold: bool = False, muted: bool = False) -> str:
    style = f"margin:2px 0;{'font-weight:600;' if bold else ''}{'opacity:0.75;' if muted else ''}"
    return f'<p style="{style}">{escape(text)}</p>'


def notes(texts: Sequence[str]) -> list[str]:
    """Notes of a prediction in small print. One that warns stands out."""
    warnings = warnings_among(texts)
    others = [text for text in texts if text not in warnings]
    return [*(paragraph(text, bold=True) for text in warnings), *(paragraph(f"note: {t}", muted=True) for t in others)]


def table(
    headers: Sequence[str], rows: Iterable[Sequence[str]], *, caption: str = "", right: Sequence[str] = ()
) -> str:
    """A table of texts; the columns named in `right` are numbers. Long tables end with a count of what is left out."""
    all_rows = list(rows)
    aligns = ["right" if header in right else "left" for header in headers]
    head = "".join(f'<th style="{HEAD}text-align:{a};">{escape(h)}</th>' for h, a in zip(headers, aligns, strict=True))
    body = "".join(f"<tr>{_cells(row, aligns)}</tr>" for row in all_rows[:MAX_ROWS])
    title = f'<caption style="text-align:left;font-weight:600;">{escape(caption)}</caption>' if caption else ""
    more = len(all_rows) - MAX_ROWS
    rest = paragraph(f"{more} more rows: to_pandas() has all of them", muted=True) if more > 0 else ""
    parts = f"{title}<thead><tr>{head}</tr></thead><tbody>{body}</tbody>"
    return f'<table style="{TABLE}">{parts}</table>{rest}'


def _cells(row: Sequence[str], aligns: Sequence[str]) -> str:
    return "".join(
        f'<td style="{CELL}text-align:{align};white-space:{WRAP[align]};">{escape(cell)}</td>'
        for cell, align in zip(row, aligns, strict=True)
    )


def bars(rows: Iterable[tuple[str, str, float]], *, caption: str) -> str:
    """Terms with a bar as long as their share: name, printed value, share of the whole."""
    lines = []
    for name, value, share_frac in rows:
        bar = (
            f'<div style="background:currentColor;opacity:0.35;height:0.8em;width:{BAR_WIDTH_PX * share_frac:.0f}px;">'
            "</div>"
        )
        cells = _cells([name, value, f"{share_frac:.1%}"], ["left", "right", "right"])
        lines.append(f'<tr>{cells}<td style="{CELL}vertical-align:middle;">{bar}</td></tr>')
    title = f'<caption style="text-align:left;font-weight:600;">{escape(caption)}</caption>'
    return f'<table style="{TABLE}">{title}<tbody>{"".join(lines)}</tbody></table>'


def picture(svg: str) -> str:
    """An SVG drawing inside the page, scaled to its width; the drawing is our own, so it is not escaped."""
    return f'<div style="max-width:760px;">{svg}</div>'


def block(*pieces: str) -> str:
    return f"<div>{''.join(piece for piece in pieces if piece)}</div>"
