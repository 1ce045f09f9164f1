"""HTML pages: the templates of the folder `templates`, filled in by Jinja2, which escapes all that it inserts."""

import base64
from functools import cache
from pathlib import Path
from typing import Any

from vision_attn.system.files import replacing
from vision_attn.viz.sheet import DARK


def write_html(path: str | Path, template: str, **values: Any) -> Path:
    """Write the page of a template. `values`: what it inserts, by name. Returns the path of the page."""
    page = filled(template, **values)
    with replacing(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", errors="replace"))  # UTF-8 cannot encode lone surrogates
    return Path(path)


def filled(template: str, **values: Any) -> str:
    """Fill in a template. `values`: what it inserts, by name; `palette` is always there."""
    return _environment().get_template(template).render(palette=DARK, **values)


def data_url(content: bytes, kind: str) -> str:
    """Encode a picture, so that a page holds it. `kind`: its format, such as "jpeg"."""
    return f"data:image/{kind};base64,{base64.b64encode(content).decode()}"


@cache
def _environment() -> Any:
    """The templates, a `jinja2.Environment`. Jinja2 is imported here since most commands write no page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("vision_attn.viz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
