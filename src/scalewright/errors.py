"""Every error Scalewright raises on purpose.

    ScalewrightError
    ├── ConfigError            exit 2   the input is wrong: value, rule, next step
    │   ├── QuantityError               a quantity without a unit, or with the wrong one
    │   ├── UnknownNameError            an unknown name; has the nearest ones
    │   ├── DocumentError               a file that cannot be read as the expected document
    │   ├── LayoutError                 a layout that cannot divide the model, batch or GPUs
    │   └── NotExpressedError           valid, but not covered by the cost models
    └── EnvironmentFailedError exit 3   the machine, not the input, is at fault
        └── MissingExtraError           an optional dependency is not installed; names the extra

A message is one sentence: the value, the rule it breaks, and what to do next.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class ScalewrightError(Exception):
    """Root of the tree. `exit_code` is what the command line returns."""

    exit_code = 3


class ConfigError(ScalewrightError):
    exit_code = 2


class QuantityError(ConfigError):
    pass


class DocumentError(ConfigError):
    pass


class LayoutError(ConfigError):
    pass


class NotExpressedError(ConfigError):
    pass


FEW_NAMES = 14
"""So many can be listed where none of them is near."""


class UnknownNameError(ConfigError):
    def __init__(self, kind: str, name: str, known: Iterable[str], *, hint: str = "") -> None:
        self.kind = kind
        self.name = name
        self.near = nearest(name, known)
        names = sorted(set(known))
        suggestion = f"did you mean {', '.join(self.near)}?" if self.near else "nothing is close to it;"
        if not self.near and 0 < len(names) <= FEW_NAMES and "choose" not in hint:
            suggestion = f"choose {', '.join(names)};" if hint else f"choose {', '.join(names)}"
        super().__init__(f"no {kind} is called {name!r}: {suggestion}{' ' + hint if hint else ''}".rstrip(";"))


class EnvironmentFailedError(ScalewrightError):
    exit_code = 3


class MissingExtraError(EnvironmentFailedError):
    def __init__(self, extra: str, module: str) -> None:
        super().__init__(f"{module} is not installed: install it with: pip install 'scalewright[{extra}]'")


def nearest(name: str, known: Iterable[str], *, limit: int = 4) -> list[str]:
    """Known names most like `name`: substrings first, then by edit similarity."""
    low = name.lower()
    names = sorted(set(known))
    same = [k for k in names if k.lower() == low]
    if same:
        return same[:limit]
    inside = [k for k in names if low and (low in k.lower() or k.lower() in low)]
    close = difflib.get_close_matches(low, [k.lower() for k in names], n=limit, cutoff=0.5)
    by_similarity = [k for c in close for k in names if k.lower() == c]
    ordered = sorted(inside, key=lambda k: (abs(len(k) - len(name)), k)) + by_similarity
    return list(dict.fromkeys(ordered))[:limit]


def shortened(text: str, *, most: int = 40) -> str:
    """A text for a message: the beginning of a long one, and how long it is."""
    return text if len(text) <= most else f"{text[:most]}... ({len(text):,} characters)"
