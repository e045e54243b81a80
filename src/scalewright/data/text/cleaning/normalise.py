"""Characters made alike: Unicode forms, line ends, control characters and spaces."""

from __future__ import annotations

import re
import unicodedata

from scalewright.data.text.pipeline_file import NormaliseStep

CONTROL = re.compile("[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\u200b]")
SPACES_AT_END = re.compile(r"[ \t\u00a0]+(?=\n|$)")
EMPTY_LINES = re.compile(r"\n{4,}")


def normalised(text: str, step: NormaliseStep) -> str:
    """The text with its characters made alike. Doing it twice changes nothing more."""
    if step.unicode != "none" and not text.isascii():
        text = unicodedata.normalize(step.unicode, text)
    if step.line_ends and "\r" in text:
        text = text.replace("\r\n", "\n").replace("\r", "\n")
    if step.control and not text.isprintable():
        text = CONTROL.sub("", text)
    if step.spaces:
        if " \n" in text or "\t\n" in text or text[-1:] in (" ", "\t") or "\u00a0\n" in text:
            text = SPACES_AT_END.sub("", text)
        if "\n\n\n\n" in text:
            text = EMPTY_LINES.sub("\n\n", text)
        text = text.strip("\n")
    return text
