"""What the package index shows: the README with absolute links, and the addresses of the project.

The address of the repository is VISION_ATTN_REPOSITORY, or that of git's remote "origin". Without one, as in a copy
that was never published, links stay relative and no address is given.
"""

import os
import re
import subprocess
from pathlib import Path
from typing import Any

from hatchling.metadata.plugin.interface import MetadataHookInterface

LINK = re.compile(r"(!?\[[^\]]*\])\((?!https?:|#)([^)]+)\)")


class Index(MetadataHookInterface):
    """Fills in `readme` and `urls`."""

    def update(self, metadata: dict[str, Any]) -> None:
        root = Path(self.root)
        address = repository(root)
        text = (root / "README.md").read_text(encoding="utf-8")
        metadata["readme"] = {"content-type": "text/markdown", "text": absolute(text, address) if address else text}
        metadata["urls"] = {
            name: f"{address}{path}"
            for name, path in (
                ("Repository", ""),
                ("Documentation", "/tree/main/docs"),
                ("Changelog", "/blob/main/CHANGELOG.md"),
                ("Issues", "/issues"),
            )
            if address
        }


def repository(root: Path) -> str:
    """Return the address of the repository as a web page; empty if it is not known."""
    if given := os.environ.get("VISION_ATTN_REPOSITORY"):
        return given.rstrip("/")
    try:
        asked = subprocess.run(
            ["git", "remote", "get-url", "origin"], cwd=root, capture_output=True, text=True, check=True
        )
    except (OSError, subprocess.CalledProcessError):
        return ""
    found = re.fullmatch(r"(?:https://(?:[^@/]+@)?|(?:ssh://)?git@)([^:/]+)[:/](.+?)(?:\.git)?/?", asked.stdout.strip())
    return f"https://{found[1]}/{found[2]}" if found else ""


def absolute(text: str, address: str) -> str:
    """Return Markdown whose links to files of the repository are absolute; pictures lead to the files themselves."""

    def link(found: re.Match) -> str:
        kind = "raw" if found[1].startswith("!") else "blob"
        return f"{found[1]}({address}/{kind}/main/{found[2]})"

    return LINK.sub(link, text)
