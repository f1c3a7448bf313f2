# SPDX-License-Identifier: Apache-2.0
"""Entry point torch.backends: torch 2.5 and later call register() when they are imported, so that scripts need no
`import weft.torch` for backend "weft". Outside the package: importing torch must work where weft cannot be loaded."""
import warnings


def register():
    try:
        import weft.torch  # noqa: F401
    except ImportError as error:
        warnings.warn(f"torch.distributed has no backend weft: {error}", stacklevel=2)
