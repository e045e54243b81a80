"""Templates of pages. Every page extends `base.html`, and the template escapes every text."""

from __future__ import annotations

from collections.abc import Iterable
from importlib import resources
from typing import TYPE_CHECKING, Any

from scalewright.errors import MissingExtraError

if TYPE_CHECKING:
    from jinja2 import Environment, Template


def page_environment() -> Environment:
    """The environment of all templates. Needs the extra `report`."""
    try:
        import jinja2
    except ModuleNotFoundError as error:
        raise MissingExtraError("report", "jinja2") from error
    return jinja2.Environment(
        autoescape=True, undefined=jinja2.StrictUndefined, loader=jinja2.FunctionLoader(page_text)
    )


def page_template(name: str) -> Template:
    return page_environment().get_template(name)


def page_text(name: str) -> str:
    """A template, a style sheet or a script, as it is written."""
    return (resources.files("scalewright.report") / "page" / name).read_text(encoding="utf-8")


def page_styles(names: Iterable[str]) -> Any:
    """Style sheets as one text that is not escaped."""
    from markupsafe import Markup

    return Markup("\n".join(map(page_text, names)))
