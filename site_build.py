"""What mkdocs adds to docs/: the README, CONTRIBUTING.md and CHANGELOG.md as pages, and a reference of what is public.

Links to files that are no page lead to the repository (its address: see `hatch_build.repository`), and are plain text
where that is not known, as in a copy that was never published.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

from hatch_build import LINK, repository

ROOT = Path(__file__).parent
PACKAGE = ROOT / "vision_attn"
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}
REFERENCE = {
    "Open and use models": ["api.load", "results.model.Model", "results.explainer.Explainer"],
    "Contracts": [
        "task",
        *(f"contracts.{name}" for name in ("captioner", "encoder", "classifier", "drawing", "criterion", "evaluator")),
        "geometry.extents",
        "geometry.receptive_fields",
    ],
} | {
    folder.capitalize(): [
        ".".join(path.relative_to(PACKAGE).with_suffix("").parts)
        for path in sorted((PACKAGE / folder).rglob("[!_]*.py"))
    ]
    for folder in ("models", "attention", "encoders", "criteria", "metrics", "faithfulness")
}
"""Pages of the reference, and the modules or objects of each."""


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages that do not lie in docs/."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_linked((ROOT / source).read_text(encoding="utf-8"), ".")))
    for title, names in REFERENCE.items():
        parts = [f"# {title}", *(f"::: vision_attn.{name}" for name in names)]
        files.append(File.generated(config, f"reference/{title.split()[0].lower()}.md", content="\n\n".join(parts)))
    return files


def on_page_markdown(markdown: str, page, **_) -> str:
    return markdown if page.file.generated_by else _linked(markdown, "docs")


def _linked(markdown: str, folder: str) -> str:
    """`markdown` of a file in `folder` of the repository, with links from docs/, where pages lie."""
    address = repository(ROOT)

    def link(found: re.Match) -> str:
        target, _, anchor = found[2].partition("#")
        path = posixpath.normpath(posixpath.join(folder, target))
        anchor = f"#{anchor}" if anchor else ""
        if path in PAGES:
            return f"{found[1]}({PAGES[path]}{anchor})"
        if path.startswith("docs/") and (ROOT / path).is_file():
            return f"{found[1]}({path.removeprefix('docs/')}{anchor})"
        return f"{found[1]}({address}/blob/main/{path}{anchor})" if address else found[1].removeprefix("!")[1:-1]

    return LINK.sub(link, markdown)
