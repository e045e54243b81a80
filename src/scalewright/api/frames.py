"""Columns of an answer as a pandas frame, where pandas is installed."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import Any

from scalewright.errors import MissingExtraError


class Framed(ABC):
    """What has columns: names with units, one value per row."""

    __slots__ = ()

    @abstractmethod
    def columns(self) -> Mapping[str, Sequence[Any]]: ...

    def to_pandas(self) -> Any:
        """The columns as a `pandas.DataFrame`; SI units, named in the columns."""
        try:
            import pandas as pd
        except ImportError as error:
            raise MissingExtraError("notebook", "pandas") from error
        return pd.DataFrame(dict(self.columns()))
