"""Filters that a user writes in Python: a function of a text and its URL. One that raises loses no other document."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path

from scalewright.errors import ConfigError

UserFilter = Callable[[str, str], object]


@lru_cache(maxsize=16)
def load_callable(name: str, folder: Path) -> UserFilter:
    """The function of FILE.py:FUNCTION. The file is run as Python runs any module: it is the user's own code."""
    file, _, function = name.rpartition(":")
    path = (folder / Path(file).expanduser()).resolve()
    if not path.is_file():
        raise ConfigError(f"callable {name!r}: {path} is not there; the path is relative to the pipeline file")
    spec = importlib.util.spec_from_file_location(f"scalewright_user_{path.stem}", path)
    if spec is None or spec.loader is None:
        raise ConfigError(f"callable {name!r}: {path} is no Python file; name one that ends in .py")
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise ConfigError(f"{path}: cannot be loaded: {type(error).__name__}: {error}") from error
    filter_function = getattr(module, function, None)
    if not callable(filter_function):
        raise ConfigError(f"{path}: has no function {function!r}; check callable = {name!r}")
    result: UserFilter = filter_function
    return result
