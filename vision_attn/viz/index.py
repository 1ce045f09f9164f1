"""A page that shows the pictures in its folder."""

from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote

from vision_attn.viz.sheet import DARK, save_page

PAGE = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="dark">
<title>{title}</title>
<style>
  body {{ margin: 0 auto; max-width: 84rem; padding: clamp(1rem, 4vw, 3rem); background: {paper}; color: {ink};
         font: 1rem/1.5 system-ui, sans-serif; }}
  h1 {{ margin: 0 0 .3rem; font-size: 1.6rem; font-weight: 600; }}
  header p, figcaption {{ margin: 0 0 2rem; color: {quiet}; }}
  a {{ color: inherit; }}
  figure {{ margin: 0; }}
  svg {{ color: {quiet}; }}
  figcaption {{ margin: .4rem 0 2rem; overflow-wrap: anywhere; }}
  img {{ display: block; max-width: 100%; border-radius: 8px; }}
{style}</style>
</head>
<body>
<header><h1>{title}</h1><p>{guide}</p></header>
<main>
{figures}
</main>
</body>
</html>
"""


class Entry(NamedTuple):
    """A picture and what is said below it."""

    path: Path
    text: str
    still: Path | None = None
    """Of an animation: a picture that shows the same, which the text links."""


def write_index(path: Path, entries: Sequence[Entry], *, title: str, guide: str) -> Path:
    """Write an HTML page of pictures in the folder of `path`, in their order. `guide` says how to read them."""
    figures = "\n".join(_figure(entry, path.parent) for entry in entries)
    return write_figures(path, figures, title=title, guide=guide)


def write_figures(path: Path, figures: str, *, title: str, guide: str, style: str = "") -> Path:
    """Write a page of HTML figures, with further rules of `style`."""
    colours = {"paper": DARK.paper, "ink": DARK.ink, "quiet": DARK.quiet}
    page = PAGE.format(title=escape(title), guide=escape(guide), figures=figures, style=style, **colours)
    return save_page(path, page)


def _figure(entry: Entry, folder: Path) -> str:
    source, told = _address(entry.path, folder), escape(entry.text)
    still = f' (<a href="{_address(entry.still, folder)}">still</a>)' if entry.still else ""
    return f'<figure><img src="{source}" alt="{told}" loading="lazy"><figcaption>{told}{still}</figcaption></figure>'


def _address(picture: Path, folder: Path) -> str:
    return quote(picture.relative_to(folder).as_posix(), errors="surrogateescape")
