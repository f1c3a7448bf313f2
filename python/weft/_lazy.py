# SPDX-License-Identifier: Apache-2.0
"""What the Python files of this package share that needs no ctypes: its import, and types that have a part in C."""


class _Library:
    """weft._library, imported at its first use."""

    def __getattr__(self, name):
        from weft import _library
        value = getattr(_library, name)
        setattr(self, name, value)
        return value


library = _Library()


def part_of(kind):
    """Decorates a class whose members become those of kind, a type of the extension, which takes its place."""
    class Empty:
        """It has what every class has."""

    def fill(part):
        for name, value in vars(part).items():
            if name not in vars(Empty) or name == "__doc__":
                setattr(kind, name, value)
        return kind
    return fill
