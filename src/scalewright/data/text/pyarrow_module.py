"""The package pyarrow, or the sentence that says how to install it."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from scalewright.errors import MissingExtraError


def pyarrow(part: str = "") -> Any:
    """pyarrow, or a part of it such as `parquet`."""
    try:
        return import_module(f"pyarrow.{part}" if part else "pyarrow")
    except ModuleNotFoundError as error:
        raise MissingExtraError("text", "pyarrow") from error
