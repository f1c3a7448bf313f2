# SPDX-License-Identifier: Apache-2.0
"""Arguments as the C library takes them. Without ctypes, which costs a millisecond."""
import operator
import os


def integer(value, name, most, least=0):
    """value as an int that the library's type has: ctypes would cut it."""
    try:
        value = operator.index(value)
    except TypeError:
        raise TypeError(f"{name} must be an integer, not {type(value)}") from None
    if not least <= value <= most:
        value = value if value.bit_length() <= 64 else f"an integer of {value.bit_length()} bits"
        raise ValueError(f"{name}: {value} is out of range: must be between {least} and {most}")
    return value


def integer_list(values, name, most, least=0):
    """Any iterable as a list of integers that the library's type has."""
    try:
        values = list(values)
    except TypeError:
        raise TypeError(f"{name} must be a sequence of integers, not {type(values)}") from None
    return [integer(value, name, most, least) for value in values]


def _c_string(encoded, value, name):
    if b"\0" in encoded:
        raise ValueError(f"{name}: {value!r} has a null character")
    return encoded


def text(value, name, expected="str", encode=str.encode):
    """value as a C string."""
    if not isinstance(value, str):
        raise TypeError(f"{name} must be {expected}, not {type(value)}")
    return _c_string(encode(value), value, name)  # str's own: a subclass may return None


def path(value, name, optional=False):
    """value, or where it is optional None, as a file's name."""
    if optional and value is None:
        return None
    try:
        return _c_string(os.fsencode(value), value, name)
    except TypeError:
        raise TypeError(f"{name} must be a path, not {type(value)}") from None
