# SPDX-License-Identifier: Apache-2.0
"""What this guest was asked to be, from the settings that it booted with."""

import pathlib
import shlex

SETTINGS = pathlib.Path("/run/guest-settings")


def settings():
    """name -> value, GUEST_ left out and in lower case."""
    words = shlex.split(SETTINGS.read_text(encoding="utf-8"))
    return {name.removeprefix("GUEST_").lower(): value for name, _, value in (word.partition("=") for word in words)}


def capabilities():
    """The names of those that the job runs with, or None: it is root."""
    kept = settings()["capabilities"]
    return None if kept == "root" else set(kept.split())
