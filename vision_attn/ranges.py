"""Numbers within a range, checked where they are given."""


def check_range(owner: str, least: int | float, most: int | float, **numbers: int | float) -> None:
    """Raise ValueError naming the first of `numbers`, parameters of `owner`, that is not from `least` to `most`.

    A config may come from anyone. What a constructor loops over or allocates has a largest value that nobody needs.
    """
    for name, number in numbers.items():
        if not least <= number <= most:  # so that NaN fails too
            raise ValueError(f"{owner}: {name} is {number}, but must be from {least:,} to {most:,}")
