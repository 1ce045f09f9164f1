"""Caption photographs with onnxruntime alone, word by word: python caption.py photo.jpg ...

A captioner of films takes folders of frames, or animations that Pillow reads, such as GIF.
"""

import json
import re
import sys
from collections.abc import Callable
from functools import partial
from math import ceil
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps, ImageSequence


def call(session: onnxruntime.InferenceSession, tensors: dict) -> dict:
    given = {tensor.name: tensors[tensor.name] for tensor in session.get_inputs()}
    return dict(zip([tensor.name for tensor in session.get_outputs()], session.run(None, given), strict=True))


def film(name: str, frames: int) -> list[Image.Image]:
    """Read evenly spaced frames of a folder, in the order of their numbers, or of an animation, evenly spaced in time.
    Frames of an animation that last a hundredth of a second or less count as a tenth, as in browsers."""
    if Path(name).is_dir():
        parts = {path: re.split(r"(\d+)", path.name) for path in Path(name).iterdir()}
        order = sorted(parts, key=lambda path: [int(piece) if piece.isdecimal() else piece for piece in parts[path]])
        return [opened(str(order[place])) for place in np.linspace(0, len(order) - 1, frames).round().astype(int)]
    captions, lengths = [], []
    for frame in ImageSequence.Iterator(Image.open(name)):
        captions.append(frame.convert("RGB"))
        length = frame.info.get("duration", 0)
        lengths.append(length if length > 10 else 100)
    ends = np.cumsum(lengths)
    moments = np.linspace(lengths[0] / 2, ends[-1] - lengths[-1] / 2, frames)
    return [captions[place] for place in np.searchsorted(ends, moments, side="right")]


def seen(photograph: Image.Image, facts: dict) -> np.ndarray:
    """Resize and crop a photograph to the encoder's input, (3, S, S)."""
    size = facts["resolution"], facts["resolution"]
    if facts["fit"] == "centre":
        side = min(photograph.size)
        left, top = ((length - side) // 2 for length in photograph.size)
        photograph = photograph.crop((left, top, left + side, top + side))
    square = photograph.resize(size, Image.Resampling.BICUBIC)
    return np.array(square).transpose(2, 0, 1)


def opened(name: str) -> Image.Image:
    """Open a picture upright, in RGB: transparent pixels become white, and greys of 10, 12, 14, 16 and more bits are
    scaled to 8."""
    image = Image.open(name)
    numbers = np.nan_to_num(np.asarray(image), posinf=0, neginf=0) if image.mode[0] in "IF" else None
    if numbers is not None:
        brightest = float(numbers.max(initial=0))
        white = brightest if brightest > 65535 else max(255, 2 ** ceil(brightest).bit_length() - 1)
        white = 1 if image.mode == "F" and brightest <= 1 else white
        rgb = Image.fromarray((numbers.clip(0) * (255 / white)).round().astype(np.uint8)).convert("RGB")
    elif image.has_transparency_data:
        layers = Image.new("RGBA", image.size, "white"), image.convert("RGBA")
        rgb = Image.alpha_composite(*layers).convert("RGB")
    else:
        rgb = image.convert("RGB")
    rgb.info, rgb.getexif()[0x0112] = {}, image.getexif().get(0x0112, 1)
    return ImageOps.exif_transpose(rgb)


def barred(words: list[int], facts: dict) -> list[int]:
    """Return the words that may not follow `words`; 1 is the end of a caption."""
    words_barred = [0, *facts["never"], *[1] * (len(words) < facts["min_words"]), *({*words} & {*facts["once"]})]
    size = facts["no_repeat"]  # of n-grams that may not occur twice
    ngrams = [words[place : place + size] for place in range(len(words) - size + 1)] if size else []
    return words_barred + [ngram[-1] for ngram in ngrams if ngram[:-1] == words[len(words) - size + 1 :]]


def search(step: Callable[[dict], dict], held: dict, facts: dict) -> list[int]:
    """Return the caption that a beam search finds, without its end word. A finished caption keeps its place in the
    beam."""
    beam: list[tuple[float, list[int], dict]] = [
        (0.0, [], held)
    ]  # log-probability, words, and the tensors of the next step
    for _ in range(facts["max_words"]):
        ended, longer = [caption for caption in beam if caption[1][-1:] == [1]], []
        for total, words, held in beam:
            if words[-1:] == [1]:
                continue
            outputs = step(held | {"word": np.array([[*words[-1:], 0][:1]])})
            held = held | {key.removeprefix("next_"): array for key, array in outputs.items()}
            logits = outputs["logits"][0]
            log_prob = logits - logits.max() - np.log(np.exp(logits - logits.max()).sum())
            log_prob[barred(words, facts)] = -np.inf
            best = np.argsort(-log_prob, kind="stable")[: facts["beams"]].tolist()
            longer += [(total + log_prob[word], [*words, word], held) for word in best if log_prob[word] > -np.inf]
        if not longer:
            break
        beam = ended + sorted(longer, key=lambda caption: -caption[0])[: facts["beams"] - len(ended)]
    _, words, _ = max(beam, key=lambda caption: caption[0] / max(len(caption[1]), 1) ** facts["length_power"])
    return words[:-1] if words[-1:] == [1] else words


def written(words, facts):
    """Join words to a caption: characters and pieces are joined without spaces, as are words of scripts without
    spaces."""
    letter = f"[{facts['spaceless']}]"
    text = facts["gap"].join(words).replace("\u2581", " ").strip()
    return re.sub(f"(?<={letter}) (?={letter})", "", text) if facts["gap"] else text


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    unreadable = 0
    folder = Path(__file__).parent
    facts = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
    encoder, start, step = (onnxruntime.InferenceSession(folder / f"{name}.onnx") for name in facts["parts"])
    for name in sys.argv[1:]:
        try:
            frames = [opened(name)] if facts["frames"] == 1 else film(name, facts["frames"])
            images = np.stack([seen(frame, facts) for frame in frames])
        except (OSError, ValueError) as error:
            print(f"{name} cannot be read: {error}", file=sys.stderr)
            unreadable = 1
            continue
        held = call(start, call(encoder, {"images": images if facts["frames"] == 1 else images[None]}))
        words = search(partial(call, step), held, facts)
        print(name, written([facts["words"][word] for word in words], facts), sep="\t")
    sys.exit(unreadable)
