# SPDX-License-Identifier: Apache-2.0
"""What test programs in Python share."""
import collections
import os
import random
import socket
import sys
import unittest


def free_port():
    """A port for another process to listen at, below those that the kernel or Weft gives to sockets: a test that runs at the
    same time would take one of these before a slow program such as torchrun listens."""
    while True:
        port = random.randrange(10000, 20000)
        with socket.socket() as probe:
            try:
                probe.bind(("", port))
            except OSError:
                continue
            return port


def main():
    """unittest.main, and a line for each reason why tests were skipped."""
    program = unittest.main(verbosity=2, exit=False)
    reasons = collections.Counter(reason for _, reason in program.result.skipped)
    for reason, count in sorted(reasons.items()):  # scripts/test.sh collects these lines
        print(f"skipped: {reason} ({count} {'test' if count == 1 else 'tests'} of {os.path.basename(sys.argv[0])})")
    sys.stdout.flush()
    sys.exit(not program.result.wasSuccessful())
