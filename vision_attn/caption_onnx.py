"""Caption photographs with onnxruntime alone, word by word: python caption.py photo.jpg ..."""

import json
import sys
from pathlib import Path

import numpy as np
import onnxruntime
from PIL import Image, ImageOps


def call(session: onnxruntime.InferenceSession, tensors: dict) -> dict:
    given = {each.name: tensors[each.name] for each in session.get_inputs()}
    return dict(zip([each.name for each in session.get_outputs()], session.run(None, given), strict=True))


if __name__ == "__main__":
    folder = Path(__file__).parent
    facts = json.loads((folder / "captioner.json").read_text(encoding="utf-8"))
    encoder, start, step = (onnxruntime.InferenceSession(folder / f"{part}.onnx") for part in facts["parts"])
    for name in sys.argv[1:]:
        upright = ImageOps.exif_transpose(Image.open(name)).convert("RGB")
        square = ImageOps.fit(upright, [facts["resolution"]] * 2, Image.Resampling.BICUBIC)
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
