# SPDX-License-Identifier: Apache-2.0
"""The parts of tests/run.py: what to run (plan), running it (process), reading it (cmocka, pychild), telling (report)."""
