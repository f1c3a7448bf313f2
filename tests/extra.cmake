# SPDX-License-Identifier: Apache-2.0
# Tests that are not one C file: scripts, checks of the tree, whole runs of the command.
