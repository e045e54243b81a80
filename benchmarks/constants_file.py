"""Put fitted values into the catalogue's constants, line by line, so that sources and notes stay."""

from __future__ import annotations

import re
from collections.abc import Mapping

from scalewright.catalog.library import packaged_data


def write_constants(values: Mapping[str, str]) -> None:
    """Replace the value of each constant; a name that is not there exactly once is an error."""
    path = packaged_data() / "constants" / "engine.toml"
    text = path.read_text()
    for name, value in values.items():
        text, count = re.subn(rf"(?m)^({name} = {{ value = )[^,]+", rf"\g<1>{value}", text)
        assert count == 1, name
    path.write_text(text)
