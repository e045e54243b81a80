"""The form of a site's accounts: regular expressions that take linear time, whatever a profile says.

Python's own engine backtracks, so that `(a+)+$` keeps it busy for ever. The engine of pydantic does not; it knows no
look-around and no references to groups, which no account needs.
"""

from __future__ import annotations

from functools import lru_cache

from pydantic_core import SchemaError, SchemaValidator, ValidationError, core_schema


@lru_cache(maxsize=256)
def _compiled(pattern: str) -> SchemaValidator:
    return SchemaValidator(core_schema.str_schema(pattern=pattern, regex_engine="rust-regex"))


def pattern_problem(pattern: str) -> str:
    """Why a text is not a regular expression; empty if it is one."""
    try:
        _compiled(pattern)
    except SchemaError as error:
        return str(error).strip().splitlines()[-1].removeprefix("error: ").strip()
    return ""


def account_matches(pattern: str, account: str, *, ignore_case: bool = False) -> bool:
    """Whether the whole account has the form of the pattern."""
    flags = "(?i)" if ignore_case else ""
    try:
        _compiled(f"{flags}^(?:{pattern})$").validate_python(account, strict=True)
    except ValidationError:
        return False
    return True
