"""One progress bar for everything long: rate and time left on a terminal, silence elsewhere."""

from collections.abc import Iterable

from tqdm import tqdm


def progress(
    items: Iterable | None = None, *, what: str, unit: str, total: int | None = None, initial: int = 0
) -> tqdm:
    """A tqdm bar over `items`, or one to `update` by hand; shown only where standard error is a terminal."""
    return tqdm(
        items, desc=what, unit=unit, unit_scale=False, total=total, initial=initial, disable=None, dynamic_ncols=True,
        leave=False,
    )  # fmt: skip
