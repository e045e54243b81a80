"""Secrets stay out of every report: variables by their name, and texts by what looks like a credential."""

from __future__ import annotations

import re
from collections.abc import Mapping

HIDDEN = "(hidden)"
_SECRET_NAME = re.compile(
    r"TOKEN|SECRET|PASSW|CREDENTIAL|JWT|PRIVATE|AUTH|COOKIE|(^|_)API_?KEY|(^|[_-])(ACCESS|ENCRYPTION|SIGNING)?_?KEYS?($|[_-])",
    re.IGNORECASE,
)
_NOT_SECRET = re.compile(r"TOKENIZER|TOKENS|NUM_TOKEN|MAX_TOKEN|TOKEN_BUDGET|TOKENIZATION", re.IGNORECASE)
"""Names of language models that only look like one."""
_IN_TEXT = (
    re.compile(
        r"(?P<before>[\"']?\b\w*(?:token|secret|passw(?:or)?d|api_?key|access_key|credential)\w*[\"']?\s*[=:]\s*[\"']?)"
        r"(?P<value>[^\s\"',;)}\]]{4,})",
        re.IGNORECASE,
    ),
    re.compile(r"(?P<before>\b(?:Bearer|Basic)\s+)(?P<value>[\w.~+/=-]{8,})", re.IGNORECASE),
    re.compile(r"(?P<before>://[^\s/:@]+:)(?P<value>[^\s/@]+)(?=@)"),
    re.compile(
        r"(?P<before>)(?P<value>\b(?:hf_[A-Za-z0-9]{16,}|gh[pousr]_[A-Za-z0-9]{20,}|sk-[A-Za-z0-9_-]{16,}"
        r"|xox[bap]-[A-Za-z0-9-]{10,}|AKIA[0-9A-Z]{16}|nvapi-[A-Za-z0-9_-]{16,}|wandb_v\d_\w{16,}"
        r"|eyJ[\w-]{10,}\.[\w-]{10,}\.[\w-]{10,}))"
    ),
)
_NUMBER = re.compile(r"^[\d.,%eE+x/-]+$")


def is_secret(name: str) -> bool:
    """Whether a variable of this name holds a secret."""
    return bool(_SECRET_NAME.search(name)) and not _NOT_SECRET.search(name)


def redacted(text: str) -> str:
    """The text without what looks like a credential. Numbers after a word such as `tokens:` stay."""
    for pattern in _IN_TEXT:
        text = pattern.sub(_hide, text)
    return text


def _hide(match: re.Match[str]) -> str:
    before, value = match.group("before"), match.group("value")
    if before and not before.startswith("://") and (_NUMBER.match(value) or _NOT_SECRET.search(before)):
        return match.group(0)
    return f"{before}{HIDDEN}"


def visible_variables(variables: Mapping[str, str]) -> dict[str, str]:
    """Variables by name, without secrets, and without credentials inside of values."""
    return {name: redacted(value) for name, value in sorted(variables.items()) if not is_secret(name)}
