"""Runs on the Hugging Face Hub: downloaded by "hf://user/name", and uploaded with a model card.

The library `huggingface_hub` reads the token and the address of the hub (HF_TOKEN, HF_ENDPOINT) as in any other
program.
"""

import json
import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vision_attn.system.bounded_yaml import read_yaml
from vision_attn.system.console import reason_of, unit_of
from vision_attn.system.errors import UserError
from vision_attn.system.files import read_json, shipped

FILES = [
    "config.yaml", "model.safetensors", "vocabulary.json", "function_words.json", "classes.json", "image_size.json",
    "metrics_*.json", "README.md",
]  # fmt: skip
"""The files that are downloaded. None of them holds code."""

_ADDRESS = re.compile(r"hf:/+([\w.-]+/[\w.-]+?)(?:@([\w./-]+))?")
"""The address of a run, also with a single slash, as `Path` writes it."""

TASKS = {
    "Captioning": ("image-to-text", 'caption("photo.jpg")'),
    "Transcription": ("image-to-text", 'transcribe("line.png")'),
    "Classification": ("image-classification", 'classify("image.png")'),
    "Generation": ("unconditional-image-generation", "draw(16)"),
}
"""For each task: its tag on the hub, and an example of its use."""


def local(name: str | Path) -> Path:
    """Return the folder of a run. A run "hf://user/name" or "hf://user/name@revision" is downloaded, or taken from the
    hub's cache; any other name is that of a folder, or of an included run.

    Raises UserError if a run is neither in the cache nor can be downloaded.
    """
    address = _ADDRESS.fullmatch(str(name))
    if not address:
        if str(name).startswith("hf:"):
            raise UserError(f"{name}: give hf://USER/NAME, or hf://USER/NAME@REVISION")
        return shipped(name)
    with _told(f"hf://{address[1]} could not be downloaded"):
        from huggingface_hub import snapshot_download

        return Path(snapshot_download(address[1], revision=address[2], allow_patterns=FILES))


def upload(folder: Path, name: str, *, private: bool = False) -> str:
    """Upload packed weights to the model repository `name` ("user/name"), made if necessary. Returns its address.

    Raises UserError, and says what to do, if the hub refuses it or cannot be reached.
    """
    if not re.fullmatch(r"[\w.-]+/[\w.-]+", name):
        raise UserError(f"{name} is not the name of a repository: give USER/NAME")
    with _told(f"{name} could not be uploaded"):
        from huggingface_hub import HfApi

        hub = HfApi()
        hub.create_repo(name, private=private, exist_ok=True)
        hub.upload_folder(repo_id=name, folder_path=folder, commit_message="Upload by vision-attn push")
        return f"hf://{name}"


@contextmanager
def _told(what: str) -> Iterator[None]:
    """Context manager: convert an error of the network or of the hub to a UserError of one line."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:  # of httpx, requests, or huggingface_hub: its versions differ
        status = getattr(getattr(error, "response", None), "status_code", None)
        reason = reason_of(error)
        if status in (401, 403):
            reason = f"access was refused ({status}): log in with `hf auth login`, or set HF_TOKEN"
        elif status == 404:
            reason = "there is no such repository, or it is private"
        elif status is None and not isinstance(error, ValueError):  # which is about the name, or what is offline
            reason = f"is there a network? ({type(error).__name__}: {reason})"
        raise UserError(f"{what}: {reason}") from error


def card(folder: Path, name: str, title: str) -> str:
    """Return the model card of packed weights: a description, an example of their use, and their metrics. A README.md
    in `folder` replaces all of it but the head."""
    config = read_yaml(folder / "config.yaml")
    task = config.get("task") or {}
    options = task.get("init_args") or {}
    task_name = str(task.get("class_path", "")).rpartition(".")[2]
    source = str((config.get("data") or {}).get("class_path", "")).rpartition(".")[2]
    tag, example = TASKS.get(task_name, (None, "task"))
    head = {"library_name": "vision_attn", "pipeline_tag": tag, "tags": ["vision-attn", "attention"]}
    lines = ["---", *(f"{key}: {json.dumps(value)}" for key, value in head.items() if value), "---", ""]
    if (folder / "README.md").is_file():
        text = (folder / "README.md").read_text(encoding="utf-8")
        return "\n".join(lines) + re.sub(r"\A---\n.*?\n---\n+", "", text, flags=re.DOTALL)  # without its own head
    parts = {role: _class(options.get(role)) for role in ("encoder", "model")}
    lines += [
        f"# {title}",
        "",
        f"A model of `vision_attn` for the task {task_name}, trained on {source or 'its data'}.",
        "",
    ]
    lines += [f"- {role}: `{path}`" for role, path in parts.items() if path]
    lines += ["", "```python", "import vision_attn", "", f'model = vision_attn.load("hf://{name}")', f"model.{example}"]
    lines += ["```", "", "Loading it runs no code of this repository."]
    for path in sorted(folder.glob("metrics_*.json")):
        numbers = {key: value for key, value in read_json(path).items() if isinstance(value, float)}
        lines += ["", f"| metric ({path.stem.removeprefix('metrics_')} split) | |", "|---|---|"]
        lines += [f"| {key} | {value:.4g}{unit_of(key)} |" for key, value in numbers.items() if key != "seconds"]
    return "\n".join(lines) + "\n"


def _class(part: Any) -> str:
    return str(part.get("class_path", "") if isinstance(part, dict) else part or "")
