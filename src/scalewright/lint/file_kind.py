"""What a file is if it has no #SBATCH lines: a job script of another scheduler, a document, or a plain shell script."""

from __future__ import annotations

import json
import re

_SCHEDULERS = {
    "PBS": re.compile(r"^#PBS[ \t]+-", re.MULTILINE),
    "LSF": re.compile(r"^#BSUB[ \t]+-", re.MULTILINE),
    "SGE": re.compile(r"^#\$[ \t]+-[A-Za-z]", re.MULTILINE),
    "Flux": re.compile(r"^#[ \t]*flux:[ \t]*-", re.MULTILINE | re.IGNORECASE),
    "Cobalt": re.compile(r"^#COBALT[ \t]+-", re.MULTILINE),
    "OAR": re.compile(r"^#OAR[ \t]+-", re.MULTILINE),
    "Fujitsu TCS": re.compile(r"^#PJM[ \t]+-", re.MULTILINE),
}
_DIRECTIVE = re.compile(r"^#(?:SBATCH|SLURM)\b", re.MULTILINE)
_FENCE = re.compile(r"^```", re.MULTILINE)


def document_kind(text: str, name: str) -> str:
    """`JSON` or `Markdown` if the file is a document and no script; else empty."""
    start = text[:64].lstrip("\ufeff \t\r\n")
    if start.startswith(("{", "[")) and (name.endswith((".json", ".ipynb")) or _is_json(text)):
        return "JSON"
    is_named = name.endswith((".md", ".markdown", ".rst"))
    if not start.startswith("#!") and (is_named or _FENCE.search(text) is not None):
        return "reStructuredText" if name.endswith(".rst") else "Markdown"
    return ""


def _is_json(text: str) -> bool:
    try:
        json.loads(text)
    except (ValueError, RecursionError):
        return False
    return True


def script_note(text: str, program: str) -> str:
    """What a reader must know about a file before its findings; empty: it is a job script for Slurm in sh or bash."""
    notes = []
    if _DIRECTIVE.search(text) is None:
        scheduler = next((name for name, lines in _SCHEDULERS.items() if lines.search(text)), "")
        if scheduler:
            notes.append(f"no #SBATCH lines (this is {scheduler}): only rules for any shell script were checked")
        elif "\r" in text and "\n" not in text:
            notes.append("no #SBATCH lines that sbatch can read: lines end with a carriage return alone")
        else:
            notes.append("no #SBATCH lines: only rules for any shell script were checked")
    if program in ("zsh", "ksh"):
        notes.append(f"this is a {program} script: lint reads it as bash, which splits words in another way")
    return "; ".join(notes)
