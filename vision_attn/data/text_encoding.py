"""Read text files in any encoding, as spreadsheets and older programs write them."""

import codecs
import logging
import re
from pathlib import Path

from charset_normalizer import from_bytes

from vision_attn.system.errors import UserError
from vision_attn.system.files import contents

MARKS = {codecs.BOM_UTF8: "utf-8-sig", codecs.BOM_UTF16_LE: "utf-16", codecs.BOM_UTF16_BE: "utf-16"}
"""Byte order marks, and the encodings that they announce."""
WESTERN = "cp1252"
OTHERS = ("gb18030", "big5", "shift_jis", "euc_jp", "euc_kr", "cp1251", "koi8_r")
"""Encodings that can be distinguished from `WESTERN`; other encodings of Latin letters cannot."""
_FOREIGN = re.compile(r"[^\x00-\x7f]")
log = logging.getLogger(__name__)


def read_text(path: Path) -> str:
    """Read a text file, whose lines then end in "\\n".

    The encoding is UTF-8, or that of the byte order mark, or else a guess, which a warning names. Raises UserError
    naming the file if it cannot be read or is not text.
    """
    content = contents(path)
    encoding = next((name for mark, name in MARKS.items() if content.startswith(mark)), "utf-8")
    try:
        text = content.decode(encoding)
    except UnicodeDecodeError:
        text = content.decode(encoding, "replace")
        lost = text.count("\ufffd")
        if encoding == "utf-8" and lost * 10 >= len(_FOREIGN.findall(text)):
            encoding = _guessed(content)
            text = content.decode(encoding, "replace")
            log.warning("%s is not in UTF-8, and is read as %s; if letters are wrong, save it as UTF-8", path, encoding)
        else:
            log.warning("%s: bytes that are not in its encoding, %s, and are replaced: %d", path, encoding, lost)
    if "\0" in text:
        raise UserError(f"{path} is not a text file")
    return text.replace("\r\n", "\n").replace("\r", "\n")


def _guessed(content: bytes) -> str:
    best = from_bytes(content[: 2**20], cp_isolation=[*OTHERS, "cp1250", WESTERN]).best()
    return best.encoding if best is not None and best.encoding in OTHERS else WESTERN
