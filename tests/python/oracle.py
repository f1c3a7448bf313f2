# SPDX-License-Identifier: Apache-2.0
"""What the collectives return, by definition and in numpy: an oracle that shares nothing with the library."""
import numpy as np

OPS = ("sum", "avg", "max", "min", "prod")
FLOATS = ("float64", "float32", "float16")
INTEGERS = ("int64", "int32", "int16", "int8", "uint64", "uint32", "uint16", "uint8")
DTYPES = FLOATS + INTEGERS


def numbers(shape, dtype, *seed):
    """Numbers of the whole range of integers, of a few units for floats; the same wherever seed is the same."""
    random = np.random.default_rng(seed)
    dtype = np.dtype(dtype)
    if dtype.kind == "f":
        return np.asarray(random.standard_normal(shape) * 4).astype(dtype)
    if dtype.kind == "b":
        return np.asarray(random.integers(0, 2, shape)).astype(dtype)
    limits = np.iinfo(dtype)
    return np.asarray(random.integers(limits.min, limits.max, shape, dtype, endpoint=True)).astype(dtype)


def tree(parts, combine):
    """In rank order; the left half has as many as the largest power of two below their number."""
    if len(parts) == 1:
        return parts[0]
    half = 1
    while half * 2 < len(parts):
        half *= 2
    return combine(tree(parts[:half], combine), tree(parts[half:], combine))


def truncated(total, n):
    """C's division of integers."""
    n = total.dtype.type(n)  # numpy makes floats of a 64-bit scalar and a Python number
    quotient = np.floor_divide(total, n)
    return np.where((total < 0) & (quotient * n != total), quotient + total.dtype.type(1), quotient).astype(total.dtype)


def reduced(parts, op):
    """The parts of all ranks, combined as the library promises: halves in single, integers in 64 bits."""
    dtype = parts[0].dtype
    wide = {"f": np.float64 if dtype == np.float64 else np.float32, "i": np.int64, "u": np.uint64}[dtype.kind]
    combine = {"sum": np.add, "avg": np.add, "max": np.maximum, "min": np.minimum, "prod": np.multiply}[op]
    with np.errstate(all="ignore"):
        total = tree([np.asarray(part).astype(wide) for part in parts], combine)
        total = np.asarray(total)
        if op == "avg":
            total = total / wide(len(parts)) if dtype.kind == "f" else truncated(total, len(parts))
        return np.asarray(total).astype(dtype)


def gathered(parts):
    """One behind the other; scalars as rows of one."""
    return np.concatenate([np.atleast_1d(part) for part in parts])


def block(whole, rank, size):
    """The rank's part of the first dimension."""
    rows = whole.shape[0] // size
    return whole[rank * rows:(rank + 1) * rows]


def padded(part, size):
    """With rows of zeros up to a multiple of size."""
    rows = -part.shape[0] % size
    return np.concatenate([part, np.zeros((rows,) + part.shape[1:], part.dtype)])


def same(actual, expected):
    """Raises unless both have the same type, shape and bits (any NaN is like any other)."""
    actual = np.asarray(actual)
    if actual.dtype != expected.dtype or actual.shape != expected.shape:
        raise AssertionError(f"{actual.dtype} {actual.shape} instead of {expected.dtype} {expected.shape}")
    np.testing.assert_array_equal(actual, expected)
