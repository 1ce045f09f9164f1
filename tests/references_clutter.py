"""Cluttered MNIST, slow and obvious: one image, one piece, one pixel at a time, after the original generator."""

import random

import numpy as np


def cluttered(digits: np.ndarray, digit: int, corner, pieces, *, canvas: int, piece: int) -> np.ndarray:
    """`pieces`: of each the digit that it is cut from, where it is cut and where it is put, corners as (x, y)."""
    image = np.zeros((canvas, canvas))
    for source, cut, put in pieces:
        add(image, digits[source][cut[1] : cut[1] + piece, cut[0] : cut[0] + piece], put)
    image[image > 1] = 1
    add(image, digits[digit], corner)
    image[image > 1] = 1
    return image


def add(image: np.ndarray, ink: np.ndarray, corner) -> None:
    for y, row in enumerate(ink):
        for x, intensity in enumerate(row):
            image[corner[1] + y, corner[0] + x] += intensity / 255


def random_cluttered(rng: random.Random, digits: np.ndarray, *, canvas: int, num_pieces: int, piece: int) -> np.ndarray:
    """With a digit, crops and positions drawn uniformly, everything fully inside."""

    def position(size: int, within: int) -> tuple[int, int]:
        return rng.randint(0, within - size), rng.randint(0, within - size)

    pieces = [
        (rng.randrange(len(digits)), position(piece, 28), position(piece, canvas)) for _ in range(num_pieces)
    ]  # fmt: skip
    return cluttered(
        digits, rng.randrange(len(digits)), position(28, canvas), pieces, canvas=canvas, piece=piece
    )  # fmt: skip
