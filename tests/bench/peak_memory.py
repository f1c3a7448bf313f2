# SPDX-License-Identifier: Apache-2.0
"""The peak memory of a rank."""


def value(path, name):
    with open(path, encoding="utf-8") as file:
        return next(int(line.split()[1]) * 1024 for line in file if line.startswith(name + ":"))


def peak_memory():
    """Bytes: the most that was resident (VmHWM), with each page that ranks share now counted once for all of them."""
    rollup = "/proc/self/smaps_rollup"
    return value("/proc/self/status", "VmHWM") - value(rollup, "Rss") + value(rollup, "Pss")
