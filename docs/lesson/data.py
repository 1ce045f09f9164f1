"""The numbers of the lesson: trains its small networks, and exports those of `weights/`.

Each function returns what one page needs, ready for JSON. `make.py` writes it into the page.
"""

import base64
import io
from pathlib import Path
from typing import Any

import torch
from PIL import Image
from torch import Tensor, nn
from torch.nn import functional as F

from vision_attn.attention.scores import ScaledDot
from vision_attn.attention.soft import Soft
from vision_attn.data.digits.mnist import Digits, read_mnist
from vision_attn.models.ram import Rectifier
from vision_attn.results.model import Model
from vision_attn.results.opening import open_model

HALF = 44
"""Weights are kept in 2 * HALF + 1 levels for each row of a matrix, one character of the page for each weight."""
LETTERS = "".join(chr(code) for code in range(35, 127) if chr(code) not in "<\\")[: 2 * HALF + 1]
"""The character of each level. None of them ends a string of JSON or a script of HTML."""
EACH = 4
"""Pictures of each digit in the page."""
WIDTH = 420
"""Of a photograph in the page, in pixels."""


def packed(weight: Tensor) -> dict[str, Any]:
    """A matrix (rows first) as levels and a scale for each row; a vector as numbers."""
    weight = weight.detach().float()
    if weight.dim() < 2:
        return {"shape": [*weight.shape], "numbers": rounded(weight.flatten())}
    rows = weight.flatten(1)
    scale = torch.tensor(rounded(rows.abs().amax(dim=1).clamp(min=1e-12) / HALF))
    levels = (rows / scale[:, None]).round().clamp(-HALF, HALF).long() + HALF
    text = "".join(LETTERS[level] for level in levels.flatten().tolist())
    return {"shape": [*weight.shape], "scale": rounded(scale), "levels": text}


def unpacked(kept: dict[str, Any]) -> Tensor:
    """The weight that the page computes with."""
    if "numbers" in kept:
        return torch.tensor(kept["numbers"]).view(kept["shape"])
    level = torch.zeros(128).index_copy_(0, torch.tensor([*LETTERS.encode()]), torch.arange(-HALF, HALF + 1.0))
    levels = level[torch.frombuffer(bytearray(kept["levels"], "ascii"), dtype=torch.uint8).long()].view(
        kept["shape"][0], -1
    )
    return (levels * torch.tensor(kept["scale"])[:, None]).view(kept["shape"])


def rounded(values: Tensor | list[float]) -> list[Any]:
    """Numbers with six digits."""
    values = values.tolist() if isinstance(values, Tensor) else values
    return [rounded(one) if isinstance(one, list) else float(f"{one:.6g}") for one in values]


def weights_of(model: nn.Module, *, without: tuple[str, ...] = ()) -> dict[str, Any]:
    return {name: packed(value) for name, value in model.state_dict().items() if not name.startswith(without)}


def digits() -> dict[str, Any]:
    """The first test digits of each class, as bytes."""
    test = read_mnist("mnist")["test"]
    members = torch.cat([(test.labels == digit).nonzero()[:EACH, 0] for digit in range(10)])
    pixels = test.images[members].numpy().tobytes()
    return {"each": EACH, "pixels": base64.b64encode(pixels).decode()}


class Counter(nn.Module):
    """How many brackets are open, said after each bracket: RAM's core with three units, and a linear layer."""

    def __init__(self) -> None:
        super().__init__()
        self.core, self.depth = Rectifier(2, 1, hidden_size=3), nn.Linear(3, 1)

    def forward(self, opens: Tensor) -> tuple[Tensor, Tensor]:
        """Depths (B, T) and states (B, T, 3) of brackets (B, T), 1 for one that opens and 0 for one that closes."""
        state, states = self.core.start(opens[:, :, None, None].float(), 1), []
        for now in F.one_hot(opens, 2).float().unbind(dim=1):
            state = self.core(now[:, None], state)
            states.append(state.hidden[:, 0])
        states = torch.stack(states, dim=1)
        return self.depth(states).squeeze(-1), states


def brackets(num: int, length: int, generator: torch.Generator) -> Tensor:
    """Random brackets of which none closes before it was opened."""
    rows, depth = [], torch.zeros(num)
    for _ in range(length):
        opens = (torch.rand(num, generator=generator) < 0.5) | (depth == 0)
        depth += 2 * opens.float() - 1
        rows.append(opens.long())
    return torch.stack(rows, dim=1)


def counter() -> dict[str, Any]:
    """Trained on strings of 20 brackets."""
    torch.manual_seed(1)
    model, generator = Counter(), torch.Generator().manual_seed(0)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 1500)
    for _ in range(1500):
        opens = brackets(64, 20, generator)
        loss = (model(opens)[0] - (2 * opens - 1).cumsum(dim=1)).square().mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        schedule.step()
    print(f"counter: squared error {loss.item():.2g}")
    return {
        name: {"shape": [*value.shape], "numbers": rounded(value.flatten())}
        for name, value in model.state_dict().items()
    }


class Asked(nn.Module):
    """Keys of pictures of digits, and a query for each of the ten questions "where is this digit?"."""

    def __init__(self) -> None:
        super().__init__()
        self.keys = nn.Sequential(nn.Linear(196, 24), nn.ReLU(), nn.Linear(24, 8))
        self.queries = nn.Parameter(torch.randn(10, 8))

    def forward(self, pictures: Tensor, question: Tensor) -> Tensor:
        """The map (B, 9) of nine pictures (B, 9, 28, 28), for a question (B) each."""
        small = F.avg_pool2d(pictures, 2).flatten(2)
        score = ScaledDot(8, 8)
        scores, _ = score(self.queries[question][:, None], score.project(self.keys(small)))
        return Soft()(scores, small).alpha[:, 0]


def nine(data: Digits, num: int, generator: torch.Generator) -> tuple[Tensor, Tensor]:
    """Nine random digits of each of `num` boards, with their labels."""
    chosen = torch.randint(len(data.labels), (num, 9), generator=generator)
    return data.images[chosen].float() / 255, data.labels[chosen]


def soft() -> dict[str, Any]:
    """Trained so that the weight of a map lies on the pictures that the question asks for."""
    torch.manual_seed(0)
    model, generator, data = Asked(), torch.Generator().manual_seed(0), read_mnist("mnist")
    optimizer = torch.optim.Adam(model.parameters(), lr=3e-3)
    steps = 800

    def share(split: str, num: int) -> Tensor:
        """The weight on the pictures that are asked for; one of them always is there."""
        pictures, labels = nine(data[split], num, generator)
        question = labels[:, 0]
        return (model(pictures, question) * (labels == question[:, None])).sum(dim=1)

    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 3e-3 * (1 - step / steps)
        loss = -share("train", 64).clamp(min=1e-9).log().mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        print(f"soft: {share('test', 1000).mean():.3f} of the weight lies where it should")
    return weights_of(model)


def ram() -> dict[str, Any]:
    """The included RAM for cluttered images of 60 x 60 pixels."""
    model = open_model("weights/ram_cluttered60", device="cpu").task.model
    return weights_of(model, without=("policy.batches",))


def line(folder: str) -> dict[str, Any]:
    """A reader of lines with monotonic attention, and its encoder; `folder` is its run, see `make.py`."""
    task = open_model(folder, device="cpu").task
    return {"encoder": weights_of(task.encoder), "model": weights_of(task.model)}


def hops(folder: str) -> dict[str, Any]:
    """A memory network of three hops, and its words; `folder` is its run, see `make.py`."""
    task = open_model(folder, device="cpu").task
    kept = weights_of(task.model)
    return {
        "words": task.vocabulary.words,
        "weights": {name: one for name, one in kept.items() if name.startswith("facts")},
    }


def caption() -> dict[str, Any]:
    """The included captioner's words about the photographs, with a byte for each weight of a map."""
    model: Model = open_model("weights/photographs", device="cpu")
    found = []
    for path in sorted(Path("docs/photographs").glob("*.jpg")):
        record = model.caption(str(path)).record(maps=True)
        words = [
            {"word": one["word"], "log_prob": round(one["log_prob"], 4), "map": in_bytes(torch.tensor(one["map"]))}
            for one in record["words"]
        ]
        rows, columns = torch.tensor(record["words"][0]["map"]).shape
        found.append(
            {
                "name": path.stem,
                "picture": pictured(path),
                "grid": [rows, columns],
                "extent": record["extent"],
                "words": words,
            }
        )
        print("caption:", path.stem, " ".join(word["word"] for word in words))
    return {"photographs": found}


def scenes() -> dict[str, Any]:
    """The included captioner of drawn scenes, and five test scenes that it describes rightly: their pixels (3, 40, 40),
    and the words and the box of each object."""
    model: Model = open_model("weights/drawn_scenes", device="cpu")
    task, batch, found = model.task, next(iter(model.source.split("test"))), []
    for image in (1, 3, 4, 7, 9):
        objects: dict[Any, list[str]] = {}
        for word, (box,) in batch.boxes[image].items():
            objects.setdefault(box, []).append(word)
        pixels = base64.b64encode(batch.images[image].numpy().tobytes()).decode()
        boxes = [{"words": words, "box": rounded([*box])} for box, words in objects.items()]
        found.append({"pixels": pixels, "objects": boxes})
    encoder = weights_of(task.encoder)
    task.encoder.load_state_dict({name: unpacked(one) for name, one in encoder.items()})  # whose extent is measured
    return {
        "words": task.vocabulary.words,
        "extent": rounded([*task.encoder.extent()]),
        "encoder": encoder,
        "model": weights_of(task.model, without=("batches",)),
        "scenes": found,
    }


def in_bytes(alpha: Tensor) -> str:
    """A map, its largest weight as 255."""
    return base64.b64encode((alpha / alpha.max() * 255).round().byte().numpy().tobytes()).decode()


def pictured(path: Path) -> str:
    """The photograph as a small JPEG, as a data address."""
    picture = Image.open(path).convert("RGB")
    picture = picture.resize((WIDTH, round(WIDTH * picture.height / picture.width)), Image.Resampling.LANCZOS)
    kept = io.BytesIO()
    picture.save(kept, "JPEG", quality=72, optimize=True)
    return "data:image/jpeg;base64," + base64.b64encode(kept.getvalue()).decode()


EVERY = {
    "caption": caption,
    "counter": counter,
    "digits": digits,
    "hops": lambda: hops("runs/lesson_hops"),
    "line": lambda: line("runs/lesson_line"),
    "ram": ram,
    "scenes": scenes,
    "soft": soft,
}
"""The numbers by the name under which the page keeps them."""
