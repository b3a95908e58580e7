"""Reductions along the short side of (nodes x devices) matrices, which numpy's own are slow at."""

from __future__ import annotations

import numpy as np

from libs.engine.columns import Bools, Ints


def row_sums(matrix: Ints) -> Ints:
    sums: Ints = np.einsum("ij->i", matrix)
    return sums


def row_maxima(matrix: Ints) -> Ints:
    """By halves. The matrix has a column at least."""
    width = matrix.shape[1]
    while width > 1:
        half = (width + 1) // 2
        matrix = np.maximum(matrix[:, :half], matrix[:, width - half :])
        width = half
    return matrix[:, 0]


def row_minima(matrix: Ints) -> Ints:
    """By halves. The matrix has a column at least."""
    width = matrix.shape[1]
    while width > 1:
        half = (width + 1) // 2
        matrix = np.minimum(matrix[:, :half], matrix[:, width - half :])
        width = half
    return matrix[:, 0]


def row_any(matrix: Bools) -> Bools:
    """By halves. The matrix has a column at least."""
    width = matrix.shape[1]
    while width > 1:
        half = (width + 1) // 2
        matrix = matrix[:, :half] | matrix[:, width - half :]
        width = half
    return matrix[:, 0]
