"""Range checks of constructor arguments."""


def check_range(owner: str, least: int | float, most: int | float, **numbers: int | float) -> None:
    """Raise ValueError naming the first of `numbers`, parameters of `owner`, that is not in [`least`, `most`].

    Configs may be untrusted, so sizes of loops and allocations in constructors must be bounded.
    """
    for name, number in numbers.items():
        if number is None or not least <= number <= most:  # also rejects NaN
            raise ValueError(f"{owner}: {name} is {number}, but must be from {least:,} to {most:,}")
