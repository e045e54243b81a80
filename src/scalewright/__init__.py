"""Scalewright plans, launches, measures and explains the training of large models on HPC clusters.

The Python interface, one function for each question:

    import scalewright as sw

    sw.predict(model="llama3-70b", system="leonardo", layout="tp=4,pp=4,dp=8,mbs=1,gbs=256,zero=1")
    sw.predict_many(model="llama3-8b", system=["leonardo", "lumi"], layout=sw.layouts(tp=[1, 2, 4], gpus=64, gbs=512))
    sw.plan(model="gpt3-175b", system="lumi", nodes=128, global_batch=1536)
    sw.lint("train.sbatch", site="leonardo")
    sw.validate()
    sw.study("storage").predict()
    sw.catalog.systems

What they return shows itself in a notebook, gives its numbers as plain attributes in SI units, and its columns with
`to_pandas()`. Wrong input raises a `ScalewrightError` with the sentence that the command line prints.

Nothing is loaded before it is used: importing the package takes milliseconds and no NumPy.
"""

from __future__ import annotations

import sys
from importlib import import_module
from types import ModuleType
from typing import Any

__version__ = "0.1.0"

_NAMES = {
    "predict": "scalewright.api.predict",
    "predict_many": "scalewright.api.many",
    "layouts": "scalewright.api.many",
    "plan": "scalewright.api.plan",
    "validate": "scalewright.api.validate",
    "ScalewrightError": "scalewright.errors",
    "ConfigError": "scalewright.errors",
    "EnvironmentFailedError": "scalewright.errors",
}
"""Names of the interface, and the module that has each."""

_CALLED = {"lint": "scalewright.api.lint", "study": "scalewright.api.study"}
"""Rooms of the package that carry the name of a function: the room can be called."""

_CATALOG_NAMES = (
    "accelerators", "links", "transports", "fabrics", "systems", "models", "storage", "prices", "grids", "totals",
    "engines",
    "constants", "stacks", "find", "compare",
)  # fmt: skip
"""What `sw.catalog` has beside the modules of that room: its kinds of entries, and two functions."""

__all__ = [
    "ConfigError", "EnvironmentFailedError", "ScalewrightError", "__version__", "catalog", "layouts", "lint", "plan",
    "predict", "predict_many", "study", "validate",
]  # fmt: skip


class _CalledPackage(ModuleType):
    """A room that is also a function of the interface: `sw.lint(...)` beside `scalewright.lint.engine`."""

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        name = self.__name__.rpartition(".")[2]
        return getattr(import_module(_CALLED[name]), name)(*args, **kwargs)


class _CatalogPackage(ModuleType):
    """The room `catalog` as what a notebook looks into: `sw.catalog.systems`, `sw.catalog.compare(...)`."""

    def __getattr__(self, name: str) -> Any:
        # Python itself asks for submodules here while it imports them: only names of the interface are looked up.
        if name not in _CATALOG_NAMES:
            raise AttributeError(f"the catalogue has no {name!r}: choose {', '.join(_CATALOG_NAMES)}")
        return getattr(import_module("scalewright.api.catalog"), name)

    def __dir__(self) -> list[str]:
        return [*super().__dir__(), *_CATALOG_NAMES]

    def _repr_html_(self) -> str:
        return str(import_module("scalewright.api.catalog").overview_html())


class _Package(ModuleType):
    """Python binds a room to its name when it is first imported; here it gets its second use."""

    def __setattr__(self, name: str, value: Any) -> None:
        if isinstance(value, ModuleType) and name in _CALLED:
            value.__class__ = _CalledPackage
        elif isinstance(value, ModuleType) and name == "catalog":
            value.__class__ = _CatalogPackage
        super().__setattr__(name, value)


def __getattr__(name: str) -> Any:
    if name in _NAMES:
        return getattr(import_module(_NAMES[name]), name)
    if name in _CALLED or name == "catalog":
        return import_module(f"{__name__}.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


sys.modules[__name__].__class__ = _Package
