# SPDX-License-Identifier: Apache-2.0
"""Collectives for Python: on numpy arrays, torch tensors and anything else that has memory."""
from weft._core import *  # noqa: F401,F403
from weft._core import __version__  # noqa: F401
