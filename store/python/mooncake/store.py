# SPDX-License-Identifier: Apache-2.0
"""kvprobe.store under the name that vLLM, vllm-ascend, LMCache and SGLang import."""

from kvprobe.store import *  # noqa: F401,F403
from kvprobe.store import __all__, __version__  # noqa: F401
