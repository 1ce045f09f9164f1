"""Caption photographs with onnxruntime alone, word by word: python caption.py photo.jpg ..."""

import json
import sys
from math import ceil
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def call(session: onnxruntime.InferenceSession, tensors: dict) -> dict:
    given = {each.name: tensors[each.name] for each in session.get_inputs()}
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, given), strict=True))


def opened(name: str) -> Image.Image:
    """Upright, in RGB: white where it is transparent, greys of 10, 12, 14, 16 and more bits scaled to 8."""
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


if __name__ == "__main__":
    if len(sys.argv) < 2:
        sys.exit(__doc__)
    unreadable = 0
    folder = Path(__file__).parent
    facts = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
    encoder, start, step = (onnxruntime.InferenceSession(folder / f"{part}.onnx") for part in facts["parts"])
    for name in sys.argv[1:]:
        try:
            size, photograph = [facts["resolution"]] * 2, opened(name)
            if facts["fit"] == "centre":
                square = ImageOps.fit(photograph, size, Image.Resampling.BICUBIC)
            else:
                square = photograph.resize(size, Image.Resampling.BICUBIC)
        except (OSError, ValueError) as error:
            print(f"{name} cannot be read: {error}", file=sys.stderr)
            unreadable = 1
            continue
        held = call(start, call(encoder, {"images": np.array(square).transpose(2, 0, 1)[None]}))
        held["word"], words = np.zeros((1, 1), np.int64), []
        while len(words) < facts["max_words"]:
            found = call(step, held)
            found["logits"][:, [0, *facts["never"]]] = -np.inf
            held |= {key.removeprefix("next_"): array for key, array in found.items()}
            held["word"] = found["logits"].argmax(axis=-1)[:, None]
            if held["word"].item() == 1:  # the end of the caption
                break
            words.append(facts["words"][held["word"].item()])
        print(name, " ".join(words), sep="\t")
    sys.exit(unreadable)
