"""Write the lesson, index.html: eleven pages in one file that opens without a server and without a network.

    python docs/lesson/make.py                    # joins frame.html, style.css, frame.js and pages/ with the numbers
                                                  # that index.html already has
    python docs/lesson/make.py --data ram soft    # computes these numbers again (`data.py`); "all": every one

The reader of lines is trained by the first two commands, half an hour of a core, the memory network by the third one
in a minute; the last one exports their numbers:

    vision-attn train configs/strings_read_monotonic.yaml --run.folder=runs/lesson_start --run.epochs=6 $SIZES
    vision-attn train configs/strings_read_monotonic.yaml --run.folder=runs/lesson_line --run.epochs=8 $SIZES \
        --run.start_from=runs/lesson_start --data.grow=0 --run.validate_every=0
    vision-attn train configs/memory_stories.yaml --data.tasks=[2] --run.folder=runs/lesson_hops
    python docs/lesson/make.py --data line hops

with the sizes

    SIZES="--task.encoder.region_size=32 --task.encoder.width=8 --task.model.encoder_size=24 --task.model.hidden_size=64
        --task.model.word_size=16 --task.model.score.attention_size=32 --data.lengths=[1,10] --data.test_lengths=[1,14]
        --data.epoch_images=12800"

MNIST must lie where `VISION_ATTN_DATA` says, or in data/.
"""

import argparse
import json
import re
from pathlib import Path

HERE = Path(__file__).parent
INDEX = HERE / "index.html"
DATA = re.compile(r'<script type="application/json" id="data-(\w+)">(.*?)</script>', re.DOTALL)
BRACKET = re.compile(r"<mo>([()\[\]])</mo>")
"""Of an equation; browsers make it as tall as the tallest index near it unless told otherwise."""
PAGE = re.compile(r"(?P<section>.*)<script>\n(?P<script>.*)</script>\n", re.DOTALL)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument(
        "--data", nargs="+", default=[], metavar="NAME", help="the numbers to compute again; all: every one"
    )
    names = parser.parse_args().data
    kept = numbers(INDEX.read_text(encoding="utf-8")) if INDEX.is_file() else {}
    if names:
        import data  # not needed to join

        for name in data.EVERY if names == ["all"] else names:
            kept[name] = encoded(data.EVERY[name]())
    INDEX.write_text(joined(kept), encoding="utf-8")


def encoded(value: object) -> str:
    """JSON for the inside of a script element: without "<", so that no text can end the element."""
    return json.dumps(value, separators=(",", ":")).replace("<", "\\u003c")


def numbers(page: str) -> dict[str, str]:
    """The JSON of each name that a written page holds."""
    return dict(DATA.findall(page))


def joined(kept: dict[str, str]) -> str:
    """The page, from the files of this folder and the JSON of each name."""
    pages = [PAGE.fullmatch(path.read_text(encoding="utf-8")) for path in sorted((HERE / "pages").glob("*.html"))]
    parts = {
        "style": (HERE / "style.css").read_text(encoding="utf-8").rstrip(),
        "pages": "\n".join(BRACKET.sub(r'<mo stretchy="false">\1</mo>', page["section"].rstrip()) for page in pages),
        "data": "\n".join(
            f'<script type="application/json" id="data-{name}">{kept[name]}</script>' for name in sorted(kept)
        ),
        "script": "\n".join(
            [(HERE / "frame.js").read_text(encoding="utf-8"), *(f"{{\n{page['script']}}}" for page in pages)]
        ),
    }
    return re.sub(r"{{(\w+)}}", lambda hole: parts[hole[1]], (HERE / "frame.html").read_text(encoding="utf-8"))


if __name__ == "__main__":
    main()
