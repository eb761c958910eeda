"""A page as a single HTML file, with its style, its charts and the library that draws them."""

from __future__ import annotations

import base64
import hashlib
import re
from functools import cache

import vl_convert
from jinja2 import Environment, PackageLoader, StrictUndefined

from timewheel._report.page import Page

PAGE, STYLE = "page.html.jinja", "style.css"
CHARTS, FOLDS, WHAT_IF = "charts.js", "folds.js", "what_if.js"


def render_page(page: Page) -> str:
    """Render the page as HTML.

    The file loads nothing, makes no connection, and runs only these scripts: a content security policy with their
    hashes makes the browser enforce that. The chart library, nine tenths of the file, is included once.
    """
    environment = _environment()
    figures = [one for one in (page.figure, *(section.figure for section in page.sections)) if one is not None]
    library = [_library()] if figures else []
    scripts = [*library, *(_text(environment, name) for name in _scripts(page, charts=bool(figures)))]
    return environment.get_template(PAGE).render(
        page=page,
        specs={figure.name: figure.spec for figure in figures},
        style=_text(environment, STYLE),
        scripts=scripts,
        hashes=[_hash(script) for script in scripts],
    )


def _scripts(page: Page, *, charts: bool) -> list[str]:
    folds = any(section.folds for section in page.sections)
    sliders = any(section.sliders is not None for section in page.sections)
    return [*([CHARTS] if charts else []), *([FOLDS] if folds else []), *([WHAT_IF] if sliders else [])]


@cache
def _environment() -> Environment:
    return Environment(
        loader=PackageLoader("timewheel._report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )


@cache
def _library() -> str:
    """Bundle Vega, Vega-Lite and Vega-Embed as a script; that takes some seconds, and no network."""
    bundle: str = vl_convert.javascript_bundle("window.vegaEmbed = vegaEmbed;")
    # The only text that would end the script too early.
    return re.sub(r"</(script)", r"<\\/\1", bundle, flags=re.IGNORECASE)


def _text(environment: Environment, name: str) -> str:
    """Return a file of the templates' folder unchanged."""
    assert environment.loader is not None
    return environment.loader.get_source(environment, name)[0]


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode()
