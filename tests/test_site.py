"""The documentation builds as a site: no broken link, nothing loaded from another server."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from vision_attn.system.files import ours


@pytest.fixture(scope="module")
def site(tmp_path_factory) -> Path:
    pytest.importorskip("mkdocstrings", reason="mkdocs-material and mkdocstrings build the site (Python 3.11 or newer)")
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", folder]
    environment = {
        **os.environ,
        "PYTHONPATH": ".",
        "NO_MKDOCS_2_WARNING": "1",
        "VISION_ATTN_REPOSITORY": "https://e.org/r",
    }
    done = subprocess.run(command, cwd=ours(), env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
    return folder


def test_the_front_page_leads_to_every_page_in_one_click(site) -> None:
    front = (site / "index.html").read_text()
    assert "vision-attn caption docs/photographs" in front and 'href="captioning/"' in front
    for page in ours().glob("docs/*.md"):
        assert f'href="{page.stem}/"' in front and (site / page.stem / "index.html").is_file()


def test_the_reference_has_what_is_public(site) -> None:
    found = "".join(page.read_text() for page in site.glob("reference/*/index.html"))
    for name in (
        "api.load",
        "models.show_attend_tell.ShowAttendTell",
        "attention.hard.Hard",
        "contracts.captioner.Captioner",
    ):
        assert f'id="vision_attn.{name}"' in found


def test_links_to_code_lead_to_the_repository(site) -> None:
    links = re.findall(r'href="([^"]+)"', (site / "equations/index.html").read_text())
    assert any(re.fullmatch(r"https://e.org/r/blob/main/vision_attn/models/draw.py#L\d+", link) for link in links)


def test_nothing_is_loaded_from_another_server(site) -> None:
    for page in site.rglob("*.html"):
        loaded = re.findall(r'<(?:script|img|link rel="stylesheet")[^>]*(?:src|href)="([^"]+)"', page.read_text())
        assert loaded and not [address for address in loaded if re.match("(https?:)?//", address)]
