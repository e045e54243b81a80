"""The console for stdout and its tables. Without a terminal the text is plain and 80 columns wide."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterable

from rich.console import Console, ConsoleOptions, RenderableType
from rich.markup import escape
from rich.segment import Segment
from rich.table import Table

from scalewright.records.terminal_text import printable
from scalewright.records.types import WARNING, warnings_among

DEFAULT_WIDTH = 80
MAX_WIDTH = 100
SMALL_RATE = 100.0


class _AnswerConsole(Console):
    def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
        """Names and messages come from files of others: no character in them may steer the terminal."""
        for segment in super().render(renderable, options):
            if segment.control or segment.text == (clean := printable(segment.text)):
                yield segment
            else:
                yield Segment(clean, segment.style)

    def on_broken_pipe(self) -> None:
        """`scalewright ... | head` is not an error: the command line ends quietly."""
        raise BrokenPipeError


def answer_console() -> Console:
    """Console for stdout: as wide as the terminal, 80 columns when there is none."""
    columns = os.environ.get("COLUMNS", "")
    width = None if sys.stdout.isatty() else int(columns) if columns.isdigit() and int(columns) > 0 else DEFAULT_WIDTH
    console = _AnswerConsole(width=width, highlight=False, soft_wrap=False)
    console.width = min(console.width, MAX_WIDTH)
    return console


def print_whole(draw: Callable[[Console], None]) -> None:
    """Draw on the console for stdout. Nothing is printed where drawing fails: an error follows no half an answer."""
    console = answer_console()
    with console.capture() as captured:
        draw(console)
    sys.stdout.write(captured.get())


def plain_table(
    *columns: str, title: str = "", right: tuple[str, ...] = (), header: bool = True, gap: int = 2
) -> Table:
    """A table without lines: columns separated by `gap` spaces, numbers aligned to the right."""
    table = Table(
        title=title or None,
        title_justify="left",
        title_style="bold",
        box=None,
        pad_edge=False,
        padding=(0, gap, 0, 0),
        show_header=header,
    )
    for column in columns:
        table.add_column(column, justify="right" if column in right else "left", overflow="fold")
    return table


def print_warnings(console: Console, notes: Iterable[str]) -> None:
    """Warnings that a prediction may be far off: they stand beside the number."""
    for note in warnings_among(notes):
        console.print(f"[bold yellow]warning[/] {escape(note.removeprefix(WARNING))}")


def print_model(console: Console, words: str) -> None:
    """Parameters of the model and what was assumed of it: one line below the question."""
    if words:
        console.print(escape(words))


def print_notes(console: Console, notes: Iterable[str]) -> None:
    """All other notes of a prediction, below its tables."""
    for note in dict.fromkeys(notes):
        if not note.startswith(WARNING):
            console.print(f"[yellow]note[/] {escape(note)}")


def rate_words(rate: float, unit: str) -> str:
    """A rate as a whole number, or with three digits if it is small."""
    return f"{rate_number(rate)} {unit}"


def rate_number(rate: float) -> str:
    return f"{rate:,.0f}" if rate >= SMALL_RATE or rate == 0 else f"{rate:.3g}"


def bar_mark(console: Console) -> str:
    """The character of bars: a block, if the terminal can show one."""
    try:
        "█".encode(console.encoding)
    except (UnicodeEncodeError, LookupError):
        return "#"
    return "█"
