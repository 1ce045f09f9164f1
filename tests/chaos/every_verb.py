"""Every verb of the command line with tiny arguments, for tests of what may happen to any of them."""

import json
import os
import resource
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from verbs import run_verb

from tests.fake_mnist import write_mnist
from tests.untrained import CONFIGS, SIZES, write_run
from vision_attn.commands import all_verbs, parser_of

parser_of(*all_verbs())  # imports them, once for all forks
STRINGS = [
    "--data.batch_size=4", "--data.epoch_images=8", "--data.val_images=4", "--data.test_images=6", "--run.warmup=0",
    "--data.lengths=[1,3]", "--data.test_lengths=[1,5]", "--task.encoder.width=2", "--task.encoder.region_size=4",
    "--run.device=cpu",
]  # fmt: skip
QUESTIONS = [
    "--data.batch_size=4", "--data.epoch_images=8", "--data.val_images=4", "--data.test_images=4", "--run.warmup=0",
    "--task.model.size=8", "--run.device=cpu",
]  # fmt: skip
SCENES = [*SIZES["sat_soft_scenes"], "--run.epochs=1", "--run.sanity_check=false"]
CONFIG = str(CONFIGS / "sat_soft_scenes.yaml")


class Verb(NamedTuple):
    """How a verb is called on the folder of inputs, so that it writes into another folder, if it writes."""

    argv: Callable[[Path, Path], list[object]]
    writes: bool = True
    same: bool = True
    """Whether it writes the same bytes each time, apart from what `attempts.contents` leaves out."""
    status: int = 0
    ends: bool = True


VERBS = {
    "answer": Verb(lambda there, out: ["answer", there / "answerer", "--example=2", f"--out={out}", "--device=cpu"]),
    "caption": Verb(lambda there, out: ["caption", there / "captioner", there / "images", "--device=cpu",
                                        f"--out={out}", f"--csv={out / 'captions.csv'}"]),
    "check": Verb(lambda there, out: ["check", "finetune_photographs", f"--data.images={there / 'images'}",
                                      f"--data.annotations={there / 'said.csv'}"], writes=False),
    "classify": Verb(lambda there, out: ["classify", there / "classifier", there / "images", f"--out={out}",
                                         "--device=cpu"]),
    "compare": Verb(lambda there, out: ["compare", there / "log", f"--out={out}"]),
    "completion": Verb(lambda there, out: ["completion", "bash"], writes=False),
    "demo": Verb(lambda there, out: ["demo", f"--out={out}", *SCENES], same=False),
    "encoders": Verb(lambda there, out: ["encoders", "resnet18"], writes=False),
    "eval": Verb(lambda there, out: ["eval", there / "classifier", f"--out={out}", "--device=cpu", "--show=1"]),
    "export": Verb(lambda there, out: ["export", there / "classifier", f"--out={out}", "--no-onnx"], same=False),
    "keys": Verb(lambda there, out: ["keys", CONFIG], writes=False),
    "look": Verb(lambda there, out: ["look", there / "captioner", there / "images", f"--out={out}", "--device=cpu"]),
    "measure": Verb(lambda there, out: ["measure", there / "captioner", there / "images" / "a.png", f"--out={out}",
                                        "--device=cpu", "--steps=2", "--best=0", "--sanity=0"], same=False),
    "pack": Verb(lambda there, out: ["pack", there / "captioner", out / "packed"]),
    "prepare": Verb(lambda there, out: ["prepare", CONFIG, *SCENES, f"--run.folder={out}"]),
    "push": Verb(lambda there, out: ["push", there / "captioner", "user/name"], writes=False, status=1),
    "reproduce": Verb(lambda there, out: ["reproduce", "memory_task1", "--quick", "--show=1", "--device=cpu",
                                          f"--out={out}"], same=False),
    "score": Verb(lambda there, out: ["score", there / "x.json", there / "references.json", f"--out={out / 'm.json'}",
                                      f"--each={out / 'each.jsonl'}"]),
    "serve": Verb(lambda there, out: ["serve", there / "captioner", "--port=0", "--device=cpu"], writes=False,
                  ends=False),
    "train": Verb(lambda there, out: ["train", CONFIG, *SCENES, f"--run.folder={out}"], same=False),
    "transcribe": Verb(lambda there, out: ["transcribe", there / "reader", there / "images", f"--out={out}",
                                           "--device=cpu"]),
}  # fmt: skip


def write_inputs(folder: Path) -> None:
    """Tiny runs, images, captions and a log."""
    write_run("sat_soft_scenes", folder / "captioner")
    write_run("memory_scenes", folder / "answerer", sizes=QUESTIONS)
    write_run("ram_mnist28", folder / "classifier", "--data.batch_size=50")
    digits = f"--data.folder={write_mnist(folder / 'mnist')}"
    write_run("strings_read_ctc", folder / "reader", digits, sizes=STRINGS)
    (folder / "images").mkdir()
    for name in "ab":
        pixels = np.random.default_rng(ord(name)).integers(0, 256, (40, 50, 3), np.uint8)
        Image.fromarray(pixels).save(folder / "images" / f"{name}.png")
    captions = {1: "a dog runs", 2: "a cat sleeps"}
    (folder / "x.json").write_text(json.dumps([{"image_id": one, "caption": text} for one, text in captions.items()]))
    records = [{"id": one, "image_id": one, "caption": text} for one, text in captions.items()]
    images = [{"id": one} for one in captions]
    (folder / "references.json").write_text(json.dumps({"images": images, "annotations": records}))
    (folder / "said.csv").write_text("image,caption,split\na.png,a dog runs,train\nb.png,a cat sleeps,test\n")
    (folder / "log").mkdir()
    (folder / "log" / "config.yaml").write_text("run: {seed: 0, metric: nll}\n")
    lines = [json.dumps({"step": step, "loss": 1 / step}) + "\n" for step in (1, 2)]
    (folder / "log" / "metrics.jsonl").write_text("".join(lines))


def call(folder: Path, *, verb: str, there: str, unread: bool = False, file_limit: int | None = None) -> None:
    """Run a verb that writes into `folder`. unread: nobody reads its output."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    os.environ["HF_TOKEN"] = "none"
    folder.mkdir(parents=True, exist_ok=True)
    if file_limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (file_limit,) * 2)
    if unread:
        reading, writing = os.pipe()
        os.close(reading)
        os.dup2(writing, 1)
        sys.stdout = os.fdopen(1, "w")
    torch.set_num_threads(1)
    temporary = folder.with_name(f"{folder.name}-temporary")
    run_verb(temporary, argv=[str(word) for word in VERBS[verb].argv(Path(there), folder)])
