"""Files of figures: PNG, SVG or PDF, all in one style. The same figure gives the same bytes."""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from scalewright.errors import ConfigError, MissingExtraError
from scalewright.records.documents import check_file, write_bytes

if TYPE_CHECKING:
    from matplotlib.figure import Figure

SUFFIXES = (".png", ".svg", ".pdf")
DOTS_PER_INCH = 200
# Okabe and Ito's colours, which readers with any colour vision can tell apart; grey is for the rest.
COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#D55E00", "#56B4E9", "#F0E442", "#000000")
REST = "#999999"
FURTHER_COLOURS = ("#7711DD", "#775533", "#999955", "#555555", "#7755DD")
LINE_COLOURS = (*(colour for colour in COLOURS if colour != "#F0E442"), *FURTHER_COLOURS)
"""For lines and small marks on white, where yellow is too pale; then further ones, for figures of up to twelve systems.
The pages have the same (report/page/study.js)."""
MEMORY_COLOURS = ("#332288", "#DDCC77", "#882255", "#88CCEE", "#999933", "#AA4499", "#661100")
"""Terms of memory. They are other colours than those of time, so that no colour of a figure has two meanings; from
Tol's muted scheme, for any colour vision."""
STYLE: dict[Any, Any] = {
    "font.size": 7.0,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "axes.linewidth": 0.6,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "svg.fonttype": "none",  # text stays text: it can be searched and edited
    "svg.hashsalt": "scalewright",  # the same prediction gives the same file
    "pdf.fonttype": 42,
}
NO_DATE: dict[str, dict[str, None]] = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
"""Metadata by kind of file."""


def check_plot(path: Path) -> None:
    """Refuse what cannot be drawn or written before anything is computed."""
    if path.suffix.lower() not in SUFFIXES:
        raise ConfigError(f"--plot {str(path)!r} names no kind of picture: end it in {', '.join(SUFFIXES)}")
    check_file(path)
    check_library()


def check_library() -> None:
    try:
        import matplotlib  # noqa: F401
    except ImportError as error:
        raise MissingExtraError("report", "matplotlib") from error


def write_figure(path: Path, draw: Callable[[], Figure], *, style: dict[Any, Any] | None = None) -> None:
    """Draw into a PNG, SVG or PDF file; `style` adds to the usual one."""
    check_plot(path)
    write_bytes(path, figure_bytes(draw, path.suffix.lower().removeprefix("."), style=style))


def figure_bytes(draw: Callable[[], Figure], kind: str, *, style: dict[Any, Any] | None = None) -> bytes:
    """A figure as png, svg or pdf. It is drawn here, because matplotlib's style holds while it is drawn."""
    import matplotlib as mpl

    with mpl.rc_context({**STYLE, **(style or {})}):
        return encoded(draw(), kind)


def encoded(figure: Figure, kind: str) -> bytes:
    """A figure as png, svg or pdf, in the style that matplotlib has now."""
    buffer = io.BytesIO()
    figure.savefig(buffer, format=kind, dpi=DOTS_PER_INCH, metadata=NO_DATE.get(kind))
    return buffer.getvalue()
