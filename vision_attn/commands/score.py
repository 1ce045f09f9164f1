"""Score captions made by any tool against reference captions.

RESULTS is JSON in COCO's results format, another list or table of images and captions, or the lines of `caption
--json`. REFERENCES is any annotation file that `train` reads, such as JSON of COCO, or CSV. Both name an image by its
id or by its file name, with or without the folder and the ending.

Captions of languages without spaces are split by --words: characters, jieba (Chinese) or fugashi (Japanese).

Prints a table and writes the metrics as JSON, with --each also those of each image. Annotated images without a caption
are skipped and counted: COCO's own code rejects such files, but a test split usually shares its annotation file with
the other splits.

--clip adds CLIPScore, which compares captions with the images.

Intervals of 95% say how far a metric moves with other images. They come from a jackknife over at least 5 images with
Student's t, each by itself. Several RESULTS are scored on the images that all of them caption, and compared with the
first: a difference whose interval contains 0 may be chance.
"""

import argparse
import json
import shlex
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vision_attn.commands._files import check_file, place
from vision_attn.commands._run_options import named
from vision_attn.data.photographs.annotation_files.hub_datasets import located
from vision_attn.data.photographs.annotation_files.references import matched, read_references, read_results
from vision_attn.data.photographs.photograph import Photograph
from vision_attn.data.words import KINDS, SCORED
from vision_attn.metrics import CLIP, METRICS, Report, caption_metrics, write_each
from vision_attn.metrics.function_words import language_of
from vision_attn.system.console import say
from vision_attn.system.errors import UserError
from vision_attn.system.files import brief, find, replacing
from vision_attn.system.inputs import writes

if TYPE_CHECKING:
    from vision_attn.metrics.intervals import Jackknife


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the arguments of `vision-attn score`."""
    parser.usage = (
        "%(prog)s RESULTS [RESULTS ...] REFERENCES [options]"  # names of --metrics would take in what follows
    )
    parser.add_argument(
        "results",
        nargs="+",
        type=named,
        metavar="RESULTS",
        help='captions: {"image_id":, "caption":}, or image,caption',
    )
    parser.add_argument("annotations", type=named, metavar="REFERENCES", help="an annotation file, as train reads it")
    parser.add_argument(
        "--out",
        type=place,
        metavar="FILE.json",
        help="where to write (default: RESULTS_metrics.json next to RESULTS; of several files RESULTS_compared.json)",
    )
    parser.add_argument("--each", type=place, metavar="FILE.jsonl", help="write the metrics of each image there")
    parser.add_argument("--json", action="store_true", help="print what is written, as a JSON object, not the table")
    parser.add_argument("--metrics", nargs="+", metavar="NAME", help=f"only these of {', '.join(METRICS)}")
    parser.add_argument(
        "--words", choices=SCORED, default="spaces", help="how captions are split into words (default: at spaces)"
    )
    parser.add_argument(
        "--clip", metavar="MODEL", help="also CLIPScore, by a CLIP of transformers: a folder, or a name on the hub"
    )
    parser.add_argument("--images", type=place, metavar="FOLDER", help="of --clip: the images of the references")
    parser.add_argument("--time-limit", type=float, default=1800.0, metavar="SECONDS", help="for each metric (1800)")


def run(arguments: argparse.Namespace) -> int:
    """Score, write and print. Returns 1 if a metric failed. Raises UserError for errors in the files."""
    from vision_attn.metrics.coco.sums import estimates

    files, annotations = [find(name) for name in arguments.results], located(arguments.annotations)
    if arguments.each and len(files) > 1:
        raise UserError("--each takes a single file of captions: score the files one by one")
    name = f"{files[0].stem}_{'metrics' if len(files) == 1 else 'compared'}.json"
    out = arguments.out or files[0].with_name(name)
    if arguments.out or out.is_dir():
        check_file(out, "--out")
    else:
        writes(out, "--out")
    if arguments.each:
        check_file(arguments.each, "--each")
    try:
        sets, photographs = [read_results(file) for file in files], read_references(annotations)
        described = [
            photographs_of(captions, photographs, file, annotations) for captions, file in zip(sets, files, strict=True)
        ]
    except UserError as error:
        if len(files) == 1 and are_exchanged(files[0], annotations):
            raise UserError(
                f"{files[0]} holds references, and {annotations} the captions to score: exchange them: "
                f"vision-attn score {shlex.join([arguments.annotations, *arguments.results])}"
            ) from error
        raise
    if len(files) > 1:
        sets, described = shared(sets, described)
    references = {image: photograph.captions for image, photograph in described[0].items()}

    split = KINDS[arguments.words]().scored
    language = language_of(caption for photograph in photographs for caption in photograph.captions)
    options = {"names": arguments.metrics, "split": split, "time_limit": arguments.time_limit, "language": language}
    clip = None
    if arguments.clip:
        from vision_attn.commands._clip import Clip

        clip = Clip(arguments.clip, described[0], arguments.images and find(arguments.images))
    reports = [caption_metrics(captions, references, **options) for captions in sets]
    if clip:
        reports = [clip.added(report, captions) for report, captions in zip(reports, sets, strict=True)]
    estimated = [estimates(report) for report in reports]
    reports = [with_note(report, some) for report, some in zip(reports, estimated, strict=True)]
    content = written_content(files, reports, estimated, images=len(references), annotated_images=len(photographs))
    # Written before a line is printed: the reader of what is printed may leave early, as `head` does.
    scored = any(report.metrics for report in reports)  # or what an earlier call wrote is worth more
    written = [out, *([arguments.each] if arguments.each else [])] if scored else []
    try:
        if scored:
            with replacing(out) as temporary:
                temporary.write_text(json.dumps(content, indent=2) + "\n", encoding="utf-8")
            if arguments.each:
                write_each(arguments.each, sets[0], reports[0].by_image)
    except OSError as error:
        option = "--out or --each" if arguments.each else "--out"
        raise UserError(
            f"{error.filename or out} cannot be written: {error.strerror}; name another file with {option}"
        ) from error
    if arguments.json:
        say(json.dumps(content))
    else:
        names = [str(files[0])] if len(files) == 1 else [f"{number}  {file}" for number, file in enumerate(files, 1)]
        what = "a caption" if len(files) == 1 else "a caption in every file"
        coverage = f"{len(references):,} of {len(photographs):,} annotated images have {what}"
        coverage += "; the others are skipped" * (len(references) < len(photographs))
        last = ["", f"written to {' and '.join(map(str, written))}"] if written else ["nothing is written"]
        for line in (*names, coverage, "", *table(reports, estimated), *last):
            say(line)
    return 1 if any(report.failed for report in reports) else 0


def are_exchanged(results: Path, annotations: Path) -> bool:
    """Return whether two files that do not fit would fit if they were exchanged."""
    try:
        captions, photographs = read_results(annotations), read_references(results)
        photographs_of(captions, photographs, annotations, results)
    except (UserError, OSError):
        return False
    return True


def with_note(report: Report, estimated: Mapping[str, "Jackknife"]) -> Report:
    """Return the report, with a note if its images are too few for intervals."""
    from vision_attn.metrics.intervals import FEWEST

    if not report.metrics or any(estimate.is_enough for estimate in estimated.values()):
        return report
    return report._replace(notes=(*report.notes, f"no intervals: they take at least {FEWEST} images"))


def written_content(
    files: Sequence[Path], reports: Sequence[Report], estimated: Sequence[Mapping[str, "Jackknife"]], **counts: int
) -> dict[str, Any]:
    """Return the JSON to write: the metrics of one file; for several a list of them, with differences to the first."""
    contents = [
        {
            **report.metrics,
            **counts,
            "intervals": {name: ends for name, estimate in some.items() if (ends := of(estimate))},
        }
        | {"failed": report.failed, "notes": report.notes}
        for report, some in zip(reports, estimated, strict=True)
    ]
    if len(files) == 1:
        return contents[0]
    differences = [
        {
            name: {
                "difference": report.metrics[name] - reports[0].metrics[name],
                "interval": of_difference(estimate, estimated[0][name]),
            }
            for name, estimate in some.items()
            if name in estimated[0]
        }
        for report, some in zip(reports, estimated, strict=True)
    ]
    return {
        "files": [{"results": str(file)} | content for file, content in zip(files, contents, strict=True)],
        "differences": [
            {"results": str(file), "minus": str(files[0])} | difference
            for file, difference in zip(files[1:], differences[1:], strict=True)
        ],
    }


def of(metric: "Jackknife | None") -> list[float] | None:
    """Return the interval of a metric, which cannot be below 0; None for too few images."""
    ends = None if metric is None else metric.interval(low=0)
    return None if ends is None else ends.tolist()


def of_difference(metric: "Jackknife | None", first: "Jackknife | None") -> list[float] | None:
    """Return the interval of the difference of a metric to that of the first file; None for too few or different
    images."""
    if metric is None or first is None or len(metric.left_out) != len(first.left_out):
        return None
    ends = (metric - first).interval()
    return None if ends is None else ends.tolist()


def table(reports: Sequence[Report], estimated: Sequence[Mapping[str, "Jackknife"]]) -> Iterator[str]:
    """Yield the lines of a table of metrics in percent, as in papers, with intervals if there are any; then failures
    and notes. With several files, each has a row for each metric, with its difference to the first."""
    shown = any(of(estimate) for some in estimated for estimate in some.values())

    def between(ends: list[float] | None) -> str:
        return f"{'{:.2f} to {:.2f}'.format(*(100 * end for end in ends)) if ends else '':>20}" * shown

    several, first = len(reports) > 1, estimated[0]
    names = [name for name in (*METRICS, *CLIP) if any(name in report.metrics for report in reports)]
    unpenalised = [name for name in names if name.removesuffix("-no-brevity") in set(names) - {name}]
    wide = 12 if CLIP[0] in names else 8
    header = f"{'metric':<{wide}}" + " file" * several + f" {'x 100':>7}" + f"{'95% interval':>20}" * shown
    header += (f"{'minus 1':>11}" + f"{'95% interval':>20}" * shown) * several
    yield header + "   without brevity penalty" * bool(unpenalised)
    for name in (name for name in names if name not in unpenalised):
        for number, (report, some) in enumerate(zip(reports, estimated, strict=True)):
            if name not in report.metrics:
                continue
            row = f"{name if report is reports[0] else '':<{wide}}" + f" {number + 1:>4}" * several
            row += f" {100 * report.metrics[name]:7.2f}" + between(of(some.get(name)))
            if number and name in reports[0].metrics:
                row += f"{100 * (report.metrics[name] - reports[0].metrics[name]):>+11.2f}"
                row += between(of_difference(some.get(name), first.get(name)))
            else:
                row += " " * (31 if shown else 11) * several
            if f"{name}-no-brevity" in report.metrics:
                row += f"   {100 * report.metrics[f'{name}-no-brevity']:.2f}"
            yield row.rstrip()
    if shown:
        yield "each interval is by itself, not adjusted for how many there are"
    told = [[*(f"{name} failed: {why}" for name, why in report.failed.items()), *report.notes] for report in reports]
    of_all = [line for line in told[0] if all(line in lines for lines in told)]
    yield from of_all
    for number, lines in enumerate(told, 1):
        yield from (f"file {number}: {line}" for line in lines if line not in of_all)


def shared(
    sets: Sequence[Mapping[int | str, str]], described: Sequence[Mapping[int | str, Photograph]]
) -> tuple[list[dict[int | str, str]], list[dict[int | str, Photograph]]]:
    """Return the captions and photographs of the images that all files caption, by the photograph's id, in the same
    order."""
    named = [
        {photographs[image].id: (caption, photographs[image]) for image, caption in captions.items()}
        for captions, photographs in zip(sets, described, strict=True)
    ]
    common = [key for key in named[0] if all(key in other for other in named)]
    if not common:
        raise UserError("no image has a caption in every file: are they of the same split?")
    return [{key: captions[key][0] for key in common} for captions in named], [
        {key: captions[key][1] for key in common} for captions in named
    ]


def photographs_of(
    candidates: dict[int | str, str], photographs: Sequence[Photograph], results: Path, annotations: Path
) -> dict[int | str, Photograph]:
    """Return the photograph of each image of the results. Raises UserError, with a likely reason, if images of the
    results are not annotated or are ambiguous."""
    try:
        matches = matched(list(candidates), photographs)
    except UserError as error:
        raise UserError(f"{results} and {annotations}: {error}") from error
    unknown = [image for image in candidates if image not in matches]
    if unknown:
        key, name = photographs[0].id, photographs[0].name
        like = f"image_id {brief(key)}" + f" or {brief(name)}" * (name not in ("", key))
        raise UserError(
            f"{results}: {len(unknown):,} of {len(candidates):,} captions belong to no image of {annotations},"
            f" such as image_id {brief(unknown[0])}; its images have names such as {like}: is it another split's file?"
        )
    return {image: matches[image] for image in candidates}
