"""Split the text of a table (CSV, TSV) into rows, and rows into fields, which may be quoted."""

from collections.abc import Iterator


def rows_of(text: str, separator: str) -> Iterator[tuple[int, list[str]]]:
    """Yield the line on which each row begins, counted from 1, and the fields of the row. Empty rows are skipped."""
    start, line = 0, 1
    while start < len(text):
        fields, end = _row(text, start, separator)
        if any(map(str.strip, fields)):
            yield line, fields
        line += text.count("\n", start, end) + 1
        start = end + 1


def _row(text: str, start: int, separator: str) -> tuple[list[str], int]:
    """Return the fields of the row that begins at `start`, and the end of its last line. A quoted field may contain
    separators and line breaks. Quotation marks that do not enclose a field are text; then the row is one line."""
    line_end = stop = _find(text, "\n", start, len(text))
    line, place = text[start:stop], start
    if '"' not in line:
        return line.split(separator), stop
    spaced = f'{separator} "' in line
    fields: list[str] = []
    while True:
        first = place
        while spaced and text.startswith(" ", first, stop):
            first += 1
        if text.startswith('"', first, stop):
            end = _field_end(text, first)
            if end < 0 or text[end : end + 1] not in (separator, "\n", ""):
                return line.split(separator), line_end
            fields.append(text[first + 1 : end - 1].replace('""', '"'))
            stop = stop if end <= stop else _find(text, "\n", end, len(text))
        else:
            end = _find(text, separator, place, stop)
            fields.append(text[place:end])
        if end == stop:
            return fields, stop
        place = end + 1


def _field_end(text: str, first: int) -> int:
    """Return the end of the field whose opening quotation mark is at `first`, after the next mark that is not doubled;
    -1 if there is none."""
    end = text.find('"', first + 1)
    while end >= 0 and text.startswith('""', end):
        end = text.find('"', end + 2)
    return end + 1 or -1


def _find(text: str, sign: str, start: int, stop: int) -> int:
    return stop if (place := text.find(sign, start, stop)) < 0 else place
