# SPDX-License-Identifier: Apache-2.0
"""The commands of a document: its ```sh blocks, each with the pattern that stands in the line before it, if any:
<!-- shows: REGEX -->   some line of the block's output must match."""

import os
import re

REPO = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


def runnable_blocks(name):
    """[(pattern or None, commands)] of a document of the repository."""
    with open(os.path.join(REPO, name), encoding="utf-8") as text:
        return re.findall(r"(?:^<!-- shows: ([^\n]*) -->\n)?^```sh\n(.*?)^```$", text.read(), re.M | re.S)
