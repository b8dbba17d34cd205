# SPDX-License-Identifier: Apache-2.0
"""The transfer engine: bytes from registered memory of this process into a peer's, or back. Results are 0 or a negative
code; kvprobe.store.STATUS has a few words for each."""

from kvprobe._engine import TransferEngine

__all__ = ["TransferEngine"]
