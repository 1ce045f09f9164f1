"""Pack the project and its data, in archives of limited size, for a machine without a network on which the day runs.

`python -m benchmarks gpu --pack FOLDER`. Each archive holds whole files, so that any order of unpacking will do.
"""

import subprocess
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from vision_attn.system.console import bytes_of, complain
from vision_attn.system.errors import UserError
from vision_attn.system.files import find, replacing

ROOT = Path(__file__).parents[2]
MOST = 60_000_000
"""The largest number of bytes of an archive."""
BLOCK = 512
DATA = (
    "mnist", "flickr8k/captions.json", "flickr8k/images", "weights/mobilenet_v2_torchvision.fp16.safetensors",
    "weights/tf_efficientnet_lite2.fp16.safetensors", "weights/photographs_lite2",
)  # fmt: skip
"""The files that the trainings of the day read, below the folder VISION_ATTN_DATA."""
README = """for part in part_*.tar; do tar xf $part; done
pip install --no-index wheels/*.whl    # what the machine lacks: see docs/gpu.md
cd project && VISION_ATTN_DATA=$PWD/../data python -m benchmarks gpu --day 10 --out ../day
"""


class File(NamedTuple):
    """A file, and its name in an archive."""

    path: Path
    name: str

    @property
    def size(self) -> int:
        """Its bytes in an archive: a header, or three for a long name, and whole blocks."""
        heads = 1 if len(self.name.encode()) < 100 else 3
        return BLOCK * (heads - (-self.path.stat().st_size // BLOCK))


def pack(folder: Path, most: int = MOST) -> list[Path]:
    """Write archives part_01.tar, ... of less than `most` bytes, and a README. Returns their paths. Raises UserError
    for a file that is too large for one, or outside of a checkout."""
    folder.mkdir(parents=True, exist_ok=True)
    written = []
    for number, files in enumerate(_divided([*project(), *data()], most), start=1):
        written.append(folder / f"part_{number:02}.tar")
        with replacing(written[-1]) as path, tarfile.open(path, "w", format=tarfile.GNU_FORMAT) as archive:
            for file in files:
                archive.add(file.path, file.name, recursive=False)
        assert written[-1].stat().st_size < most
    with replacing(folder / "README") as path:
        path.write_text(README)
    return written


def project() -> Iterator[File]:
    """The files that git tracks, as they are now."""
    listed = subprocess.run(["git", "ls-files", "-z"], cwd=ROOT, capture_output=True, text=True)
    if listed.returncode:
        raise UserError(f"{ROOT} is no checkout of git, whose files would be packed")
    for name in filter(None, listed.stdout.split("\0")):
        if (ROOT / name).is_file():
            yield File(ROOT / name, f"project/{name}")


def data() -> Iterator[File]:
    """The files of the data that are found."""
    for name in DATA:
        try:
            place = find(name)
        except UserError:
            complain(f"left out: {name}, which is not found")
            continue
        for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
            if path.is_file():
                yield File(path, f"data/{name}" + (f"/{path.relative_to(place).as_posix()}" if place.is_dir() else ""))


def _divided(files: list[File], most: int) -> Iterator[list[File]]:
    """Files in their order, each archive as full as they make it."""
    room = most - 2 * 20 * BLOCK  # the end of an archive, which is filled up to 20 blocks
    archive, size = list[File](), 0
    for file in files:
        if file.size > room:
            raise UserError(f"{file.path} has {bytes_of(file.size)}, more than an archive may have: leave it out")
        if size + file.size > room:
            yield archive
            archive, size = [], 0
        archive.append(file)
        size += file.size
    if archive:
        yield archive
