"""Packs what a machine with a GPU and without a network lacks: `python -m benchmarks.gpu.pack FOLDER`; see docs/gpu.md.

FOLDER gets wheels/, mnist/, weights/ and flickr8k/ (photographs of a part of each split, with their captions). Together
with the files of this repository it stays below a limit, 64 MiB by default.
"""

import argparse
import json
import re
import shutil
import subprocess
import sys
from collections.abc import Iterable, Sequence
from pathlib import Path

from benchmarks.gpu.block import ROOT
from vision_attn.data.digits.mnist import FILES, existing, locate
from vision_attn.system.files import find, read_json, replacing

THERE = ("torch", "torchvision", "jaxtyping", "safetensors", "tokenizers", "tqdm", "pyyaml", "pytest")
"""What a machine for PyTorch has, with what these need themselves."""
WHEELS = ("rapidfuzz",)
"""What the package needs in addition to `THERE`. Metrics that need Java are computed elsewhere, from the captions."""
WEIGHTS = "weights/mobilenet_v2_torchvision.fp16.safetensors"
MiB = 2**20


def main(argv: Sequence[str] | None = None) -> int:
    """Pack, and print what there is."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu.pack", description=__doc__)
    parser.add_argument("folder", type=Path, metavar="FOLDER", help="outside git's view, such as build/gpu")
    parser.add_argument("--limit", type=float, default=64, help="MiB of this repository and FOLDER (default: 64)")
    parser.add_argument("--flickr8k", type=float, default=30, help="MiB of photographs at most (default: 30)")
    parser.add_argument("--python", default="3.12", help="version of Python there (default: 3.12)")
    asked = parser.parse_args(argv)
    folder: Path = asked.folder
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    for name, pack in (
        ("wheels", lambda: wheels(folder, asked.python)),
        ("mnist", lambda: mnist(folder)),
        ("flickr8k", lambda: flickr8k(folder, int(asked.flickr8k * MiB))),
    ):
        try:
            print(f"{name}: {pack()}")
        except ValueError as error:
            print(f"{name}: left out: {error}")
    tracked, packed = total(repository()), total(path for path in folder.rglob("*") if path.is_file())
    print(f"{packed / MiB:.1f} MiB in {folder}, {tracked / MiB:.1f} MiB of this repository")
    if packed + tracked > asked.limit * MiB:
        print(f"together more than {asked.limit:g} MiB: give a smaller --flickr8k", file=sys.stderr)
        return 1
    return 0


def wheels(folder: Path, python: str) -> str:
    """Download `WHEELS` in the versions of constraints.txt. Raises ValueError if pip cannot."""
    pinned = dict(re.findall(r"^([\w.-]+)==([^\s;]+)$", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    names = [f"{name}=={pinned[name]}" for name in WHEELS]
    command = [sys.executable, "-m", "pip", "download", "-q", "--disable-pip-version-check", "--no-deps"]
    command += ["--only-binary=:all:", "--implementation=cp", f"--python-version={python}"]
    done = subprocess.run([*command, "-d", str(folder / "wheels"), *names], capture_output=True, text=True)
    if done.returncode:
        raise ValueError(f"pip cannot download {', '.join(names)}: {done.stderr.strip()}")
    return ", ".join(names)


def mnist(folder: Path) -> str:
    """Copy the four files. Raises ValueError if they are not there."""
    place = locate("mnist", download=False)
    files = [existing(place, name) for pair in FILES.values() for name in pair]
    for file in files:
        copy(file, folder / "mnist" / file.name)
    return f"{len(files)} files"


def flickr8k(folder: Path, limit: int) -> str:
    """Copy the encoder's weights, photographs of at most `limit` bytes, and their captions.

    Each split keeps its share of the images, from its beginning. A photograph has a ninth of the bytes of its
    annotation vectors, which the encoder computes there in seconds.
    """
    weights, images, captions = find(WEIGHTS), find("flickr8k/images"), read_json(find("flickr8k/captions.json"))
    copy(weights, folder / WEIGHTS)
    listed = [image for image in captions["images"] if image.get("split") in ("train", "val", "test")]
    share = min(1.0, limit / total(images / image["file_name"] for image in listed))
    kept = []
    for split in ("train", "val", "test"):
        members = [image for image in listed if image["split"] == split]
        kept += members[: int(share * len(members))]
    for image in kept:
        copy(images / image["file_name"], folder / "flickr8k" / "images" / image["file_name"])
    ids = {image["id"] for image in kept}
    notes = [note for note in captions["annotations"] if note["image_id"] in ids]
    with replacing(folder / "flickr8k" / "captions.json") as temporary:
        temporary.write_text(json.dumps({"images": kept, "annotations": notes}), encoding="utf-8")
    return f"{len(kept)} of {len(listed)} photographs, with {len(notes)} captions"


def copy(file: Path, to: Path) -> None:
    to.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(file, to)


def repository() -> list[Path]:
    """The files that git tracks or would track."""
    command = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    return [path for name in done.stdout.split("\0") if name and (path := ROOT / name).is_file()]


def total(files: Iterable[Path]) -> int:
    """Bytes of all files."""
    return sum(file.stat().st_size for file in files)


if __name__ == "__main__":
    sys.exit(main())
