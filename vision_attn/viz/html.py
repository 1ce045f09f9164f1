"""Write HTML pages from the Jinja2 templates of the folder `templates`. Inserted values are escaped."""

import base64
import re
from functools import cache
from pathlib import Path
from typing import Any

from vision_attn.system.files import replacing
from vision_attn.viz.panel_sheets import DARK

FONTS = Path(__file__).parent / "templates" / "fonts"
FACES = {
    "inter-latin": "0000-00FF 0131 0152-0153 02C6 02DA 02DC 2000-206F 20AC 2122 2191 2193 2212 2215",
    "inter-latin-ext": "0100-0130 0132-0151 0154-024F 1E00-1EFF",
    "inter-greek": "0370-03FF",
    "inter-cyrillic": "0400-045F 0490-0491 04B0-04B1 2116",
}
"""The files of the included typeface, and the letters of each. A page contains the files whose letters it needs; for
all other letters, the browser uses typefaces of the machine."""
PLACE = "/*<faces>*/"
"""The mark at which the typeface is inserted into a page. No text of a page can contain it, since "<" is escaped."""


def write_html(path: str | Path, template: str, **values: Any) -> Path:
    """Fill in a template, and write the page. Returns its path.

    values: the values of the template, by name.
    """
    page = filled(template, **values)
    page = page.replace(PLACE, _faces(page), 1)
    with replacing(path) as temporary:
        temporary.write_bytes(page.encode("utf-8", errors="replace"))  # UTF-8 cannot encode lone surrogates
    return Path(path)


def filled(template: str, **values: Any) -> str:
    """Return a template with its values filled in.

    values: the values of the template, by name, in addition to `palette`.
    """
    return _environment().get_template(template).render(palette=DARK, **values)


def data_url(content: bytes, media_type: str) -> str:
    """Encode a picture as a data URL, to put it into a page.

    media_type: its format, such as "jpeg".
    """
    return f"data:image/{media_type};base64,{base64.b64encode(content).decode()}"


@cache
def _environment() -> Any:
    """Return the templates, a `jinja2.Environment`. Jinja2 is imported here since most commands write no page."""
    from jinja2 import Environment, PackageLoader, StrictUndefined

    return Environment(
        loader=PackageLoader("vision_attn.viz"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )


def _faces(page: str) -> str:
    """Return CSS that holds the files of the typeface that a page needs."""
    return "\n".join(
        f'@font-face {{ font-family: Inter; font-weight: 400 700; src: url("{_font(name)}") format("woff2"); '
        f"unicode-range: {', '.join(f'U+{letter_range}' for letter_range in letters.split())}; }}"
        for name, letters in FACES.items()
        if re.search("[" + re.sub(r"[0-9A-F]{4}", r"\\u\g<0>", letters.replace(" ", "")) + "]", page)
    )


@cache
def _font(name: str) -> str:
    return f"data:font/woff2;base64,{base64.b64encode((FONTS / f'{name}.woff2').read_bytes()).decode()}"
