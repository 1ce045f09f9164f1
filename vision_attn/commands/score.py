"""Score captions made by any tool (COCO results format) against COCO annotations.

Prints a table and writes the metrics as JSON. Annotated images without a caption are skipped and counted: COCO's own
code rejects such files, but a test split usually shares its annotation file with the other splits.
"""

import argparse
import json
from pathlib import Path

from vision_attn.commands._places import writable
from vision_attn.console import say
from vision_attn.files import find, replacing
from vision_attn.metrics import METRICS, caption_metrics, read_references, read_results


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn score`."""
    parser.usage = "%(prog)s RESULTS.json ANNOTATIONS.json [options]"  # names of --metrics would take in what follows
    parser.add_argument("results", metavar="RESULTS.json", help='a list (or lines) of {"image_id":, "caption":}')
    parser.add_argument("annotations", metavar="ANNOTATIONS.json", help="reference captions in COCO's format")
    parser.add_argument(
        "--out", metavar="FILE.json", help="where to write (default: RESULTS_metrics.json next to RESULTS)"
    )
    parser.add_argument("--json", action="store_true", help="print what is written, as a JSON object, not the table")
    parser.add_argument("--metrics", nargs="+", metavar="NAME", help=f"only these of {', '.join(METRICS)}")
    parser.add_argument("--time-limit", type=float, default=1800.0, metavar="SECONDS", help="for each metric (1800)")


def run(arguments: argparse.Namespace) -> int:
    """Score, print and write. Returns 1 if a metric failed. Raises ValueError for errors in the files."""
    results, annotations = find(arguments.results), find(arguments.annotations)
    out = Path(arguments.out) if arguments.out else results.with_name(f"{results.stem}_metrics.json")
    if out.is_dir():
        raise ValueError(f"{out} is a folder: --out must name a file")
    if arguments.out:
        writable(out.parent, "--out")
    candidates, references = read_results(results), read_references(annotations)
    check(candidates, references, results, annotations)

    report = caption_metrics(candidates, references, names=arguments.metrics, time_limit=arguments.time_limit)
    coverage = f"{len(candidates):,} of {len(references):,} annotated images have a caption"
    if len(candidates) < len(references):
        coverage += "; the others are skipped"
    for line in () if arguments.json else (str(results), coverage, "", *report.table().split("\n")):
        say(line)
    content = {**report.metrics, "images": len(candidates), "annotated_images": len(references)}
    content |= {"failed": report.failed, "notes": report.notes}
    if not report.metrics:  # what an earlier call wrote there is worth more
        say(json.dumps(content) if arguments.json else "nothing is written")
        return 1
    try:
        with replacing(out) as temporary:
            temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
    except OSError as error:
        raise ValueError(f"{out} cannot be written: {error.strerror}; name another file with --out") from error
    for line in (json.dumps(content),) if arguments.json else ("", f"written to {out}"):
        say(line)
    return 1 if report.failed else 0


def check(candidates: dict, references: dict, results: Path, annotations: Path) -> None:
    """Raise ValueError, with a likely reason, if images of the results are not annotated."""
    unknown = [image for image in candidates if image not in references]
    if unknown:
        hint = "is it another split's file?"
        if {str(image) for image in candidates} <= {str(image) for image in references}:
            hint = "one file writes its ids as numbers, the other as text"
        raise ValueError(
            f"{results}: {len(unknown):,} of {len(candidates):,} captions belong to no image of {annotations},"
            f" such as image_id {unknown[0]!r}; {hint}"
        )
