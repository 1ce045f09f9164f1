"""The guard against resuming a run under other settings."""

from collections.abc import Collection
from pathlib import Path
from typing import Any


def keep_to(folder: Path, old: dict[str, Any], new: dict[str, Any], *, free: Collection[str] = ()) -> None:
    """Raise ValueError where `new` changes a setting under which the run in `folder` was started.

    Nested settings are compared by their dotted keys. Those in `free` may change.
    """
    before, after = _flat(old), _flat(new)
    changed = [
        f"{key} was {before.get(key)}, is {after.get(key)}"
        for key in {**before, **after}
        if before.get(key) != after.get(key) and key not in free
    ]
    if changed:
        shown = ", ".join(changed[:6]) + (f" and {len(changed) - 6} more" if len(changed) > 6 else "")
        raise ValueError(
            f"{folder} holds a run with other settings ({shown}): set them back, give another --run.folder "
            f"(--run.start_from={folder} begins with its weights), or delete that folder"
        )


def _flat(node: Any, path: tuple[str, ...] = ()) -> dict[str, Any]:
    if not isinstance(node, dict):
        return {".".join(path): node}
    leaves: dict[str, Any] = {}
    for key, value in node.items():
        leaves |= _flat(value, path if key in ("init_args", "class_path") else (*path, str(key)))
    return leaves
