# SPDX-License-Identifier: Apache-2.0
"""The end of test programs in Python."""
import collections
import os
import sys
import unittest


def main():
    """unittest.main, and a line for each reason why tests were skipped."""
    program = unittest.main(verbosity=2, exit=False)
    reasons = collections.Counter(reason for _, reason in program.result.skipped)
    for reason, count in sorted(reasons.items()):  # scripts/test.sh collects these lines
        print(f"skipped: {reason} ({count} {'test' if count == 1 else 'tests'} of {os.path.basename(sys.argv[0])})")
    sys.stdout.flush()
    sys.exit(not program.result.wasSuccessful())
