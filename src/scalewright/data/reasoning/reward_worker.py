"""The process that runs a user's reward function: batches of answers in, one line each; values out, one line each.

Started with `python -m`, so that what the function does, prints or breaks stays out of the training process.
"""

from __future__ import annotations

import importlib
import importlib.util
import json
import os
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from types import ModuleType
from typing import Any

OWN_KEYS = ("prompt", "response", "id")


def main(spec: str) -> None:
    """Serve batches until the input ends. What the function prints goes to the error stream."""
    with os.fdopen(os.dup(1), "w", encoding="utf-8") as replies:
        os.dup2(2, 1)
        try:
            function = user_function(spec)
            failure = ""
        except Exception as error:  # the module is the user's code
            failure = f"cannot be imported: {type(error).__name__}: {error}"
        for line in sys.stdin:
            reply = {"error": failure} if failure else answer(function, json.loads(line))
            replies.write(json.dumps(reply) + "\n")
            replies.flush()


def user_function(spec: str) -> Callable[..., Any]:
    """The function that `package.module:function` or `file.py:function` names."""
    place, _, name = spec.rpartition(":")
    module = _module_of_file(Path(place)) if place.endswith(".py") else importlib.import_module(place)
    function = getattr(module, name, None)
    if not callable(function):
        raise LookupError(f"{place} has no function {name}")
    return function  # type: ignore[no-any-return]


def _module_of_file(path: Path) -> ModuleType:
    sys.path.insert(0, str(path.resolve().parent))
    spec = importlib.util.spec_from_file_location(path.stem, path)
    if spec is None or spec.loader is None or not path.is_file():
        raise FileNotFoundError(f"{path} is not there")
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module
    spec.loader.exec_module(module)
    return module


def columns_of(rows: Sequence[Mapping[str, Any]]) -> dict[str, list[Any]]:
    """The arguments of the function: prompts, completions, and each field of the file."""
    keys = {key for row in rows for key in row} - set(OWN_KEYS)
    columns = {key: [row.get(key) for row in rows] for key in sorted(keys)}
    return {"prompts": [row["prompt"] for row in rows], "completions": [row["response"] for row in rows], **columns}


def answer(function: Callable[..., Any], rows: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """The values of one batch, or what went wrong. Columns of the file are lists, as in TRL's reward functions."""
    where = f"problems {rows[0]['id']} to {rows[-1]['id']}"
    try:
        values = function(**columns_of(rows))
    except Exception as error:  # the function is the user's code
        return {"error": f"raised {type(error).__name__} on {where}: {error}"}
    if values is None or isinstance(values, str | bytes | dict) or not hasattr(values, "__iter__"):
        return {"error": f"returned {values!r:.60} for {where}: return a list with one number for each answer"}
    return {"values": [_plain(value) for value in values]}


def _plain(value: Any) -> Any:
    """A number, as JSON knows it; NumPy's and PyTorch's have `item`. Anything else is shown in the message."""
    plain = value.item() if hasattr(value, "item") else value
    if plain is None or isinstance(plain, bool | int | float | str):
        return plain
    if isinstance(plain, dict):
        return {str(key): _plain(inner) for key, inner in plain.items()}
    return repr(plain)


if __name__ == "__main__":
    main(sys.argv[1])
