"""The documentation builds as a site: no broken link, nothing loaded from another server, and a search that finds."""

import json
import os
import re
import subprocess
import sys
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from tests.browser import NEEDED, PROGRAM, Browser
from vision_attn.system.files import ours

PAGES = {
    "batch size": "out_of_memory",
    "out of memory": "out_of_memory",
    "gradient accumulation": "out_of_memory",
    "own encoder": "captioning_training",
    "freeze encoder": "captioning_training",
    "change the model": "captioning_training",
    "fine tune on my photographs": "captioning_training",
    "evaluate on COCO": "captioning_training",
    "BLEU is 0": "captioning_training",
    "METEOR needs Java": "captioning_training",
    "confidence intervals": "captioning_training",
    "beam width": "captioning",
    "caption length": "captioning",
    "vocabulary size": "captioning_data",
    "use my own dataset": "captioning_data",
    "image size": "captioning_data",
    "Chinese captions": "captioning_data",
    "CSV of captions": "captioning_data",
    "colours of the map": "look",
    "attention map of ViT": "look",
    "Grad-CAM": "look",
    "attention heatmap": "look",
    "timm model": "look",
    "custom loss": "attention",
    "REINFORCE baseline": "attention",
    "glimpse count": "glimpses",
    "cluttered MNIST": "glimpses",
    "video captions": "films",
    "resume a run": "runs",
    "checkpoint": "runs",
    "number of epochs": "runs",
    "overfitting": "runs",
    "push to hub": "runs",
    "mixed precision": "runs",
    "torch.compile": "runs",
    "early stopping": "runs",
    "learning rate schedule": "runs",
    "export ONNX": "runs",
    "seeds": "runs",
    "wandb offline": "runs",
    "several GPUs": "scale",
    "DDP": "scale",
    "Docker": "scale",
    "serve over HTTP": "service",
    "Windows": "install",
    "CPU only": "install",
    "train without GPU": "install",
    "download weights offline": "install",
    "licence of weights": "install",
}
"""What users look for, and the page on which it stands."""

ASK = """
(async questions => {
  const config = JSON.parse(document.querySelector('#__config').textContent);
  const index = await (await fetch('search/search_index.json')).json();
  const worker = new Worker(config.search);
  const told = message => new Promise(done => { worker.onmessage = event => done(event.data.data); worker.postMessage(message); });
  await told({type: 0, data: {...index, options: {suggest: false}}});
  const found = {};
  for (const question of questions) found[question] = (await told({type: 2, data: question})).items.map(item => item[0].location);
  return found;
})(%s)
"""  # noqa: E501
"""What the page does with a question: its worker has the index, and answers with sections, grouped by pages."""


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


@pytest.mark.slow
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


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """No line for each file."""


@pytest.fixture(scope="module")
def ranking(site: Path, tmp_path_factory) -> dict[str, list[str]]:
    """For each question the pages that the search of the site finds, best first."""
    if PROGRAM is None:
        pytest.skip(NEEDED)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(site)))
    Thread(target=server.serve_forever, daemon=True).start()
    browser = Browser(tmp_path_factory.mktemp("profile"))
    browser.call("Page.navigate", url=f"http://127.0.0.1:{server.server_port}/")
    browser.wait("document.querySelector('#__config')")
    answers = browser.run(ASK % json.dumps([*PAGES]))
    browser.close()
    server.shutdown()
    server.server_close()
    assert isinstance(answers, dict)
    return {question: [location.split("/")[0] for location in sections] for question, sections in answers.items()}


@pytest.mark.parametrize("question", PAGES)
def test_a_question_leads_to_its_page(ranking: dict[str, list[str]], question: str) -> None:
    """Among the first three. Where it does not, give the page a heading with the words of the question."""
    assert PAGES[question] in ranking[question][:3]


def test_every_page_of_the_list_exists() -> None:
    assert len(PAGES) > 30 and all((ours() / f"docs/{page}.md").is_file() for page in PAGES.values())
