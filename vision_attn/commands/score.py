"""Score captions made by any tool against reference captions.

RESULTS is JSON in COCO's results format, another list or table of images and captions, or the lines of `caption
--json`. REFERENCES is any annotation file that `train` reads, such as JSON of COCO, or CSV. Both name an image by its
id or by its file name, with or without the folder and the ending.

Prints a table and writes the metrics as JSON, and with --each those of each image. Annotated images without a caption
are skipped and counted: COCO's own code rejects such files, but a test split usually shares its annotation file with
the other splits.
"""

import argparse
import json
from collections.abc import Sequence
from pathlib import Path

from vision_attn.commands._files import check_file
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.data.photographs.references import matched, read_references, read_results
from vision_attn.metrics import METRICS, caption_metrics, write_each
from vision_attn.system.console import say
from vision_attn.system.files import brief, find, replacing


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn score`."""
    parser.usage = "%(prog)s RESULTS REFERENCES [options]"  # names of --metrics would take in what follows
    parser.add_argument("results", metavar="RESULTS", help='captions: {"image_id":, "caption":}, or image,caption')
    parser.add_argument("annotations", metavar="REFERENCES", help="an annotation file, as train reads it")
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write (default: RESULTS_metrics.json next to RESULTS)"
    )
    parser.add_argument("--each", type=Path, metavar="FILE.jsonl", help="write the metrics of each image there")
    parser.add_argument("--json", action="store_true", help="print what is written, as a JSON object, not the table")
    parser.add_argument("--metrics", nargs="+", metavar="NAME", help=f"only these of {', '.join(METRICS)}")
    parser.add_argument("--time-limit", type=float, default=1800.0, metavar="SECONDS", help="for each metric (1800)")


def run(arguments: argparse.Namespace) -> int:
    """Score, write and print. Returns 1 if a metric failed. Raises ValueError for errors in the files."""
    results, annotations = find(arguments.results), find(arguments.annotations)
    out = Path(arguments.out) if arguments.out else results.with_name(f"{results.stem}_metrics.json")
    if arguments.out or out.is_dir():
        check_file(out, "--out")
    if arguments.each:
        check_file(arguments.each, "--each")
    candidates, photographs = read_results(results), read_references(annotations)
    references = references_of(candidates, photographs, results, annotations)

    report = caption_metrics(candidates, references, names=arguments.metrics, time_limit=arguments.time_limit)
    content = {**report.metrics, "images": len(candidates), "annotated_images": len(photographs)}
    content |= {"failed": report.failed, "notes": report.notes}
    # Written before a line is printed: the reader of what is printed may leave early, as `head` does.
    written = [out, *([arguments.each] if arguments.each else [])] if report.metrics else []
    try:
        if report.metrics:  # or what an earlier call wrote is worth more
            with replacing(out) as temporary:
                temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            if arguments.each:
                write_each(arguments.each, candidates, report.each)
    except OSError as error:
        option = "--out or --each" if arguments.each else "--out"
        raise ValueError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another file with {option}"
        ) from error
    if arguments.json:
        say(json.dumps(content))
    else:
        coverage = f"{len(candidates):,} of {len(photographs):,} annotated images have a caption"
        coverage += "; the others are skipped" * (len(candidates) < len(photographs))
        last = ["", f"written to {' and '.join(map(str, written))}"] if written else ["nothing is written"]
        for line in (str(results), coverage, "", *report.table().split("\n"), *last):
            say(line)
    return 1 if report.failed else 0


def references_of(
    candidates: dict[int | str, str], photographs: Sequence[Photograph], results: Path, annotations: Path
) -> dict[int | str, list[str]]:
    """The references of each image of the results. Raises ValueError, with a likely reason, if images of the results
    are not annotated or are ambiguous."""
    try:
        found = matched(list(candidates), photographs)
    except ValueError as error:
        raise ValueError(f"{results} and {annotations}: {error}") from error
    unknown = [image for image in candidates if image not in found]
    if unknown:
        key, name = photographs[0].id, photographs[0].name
        like = f"image_id {brief(key)}" + f" or {brief(name)}" * (name not in ("", key))
        raise ValueError(
            f"{results}: {len(unknown):,} of {len(candidates):,} captions belong to no image of {annotations},"
            f" such as image_id {brief(unknown[0])}; its images have names such as {like}: is it another split's file?"
        )
    return {image: found[image].captions for image in candidates}
