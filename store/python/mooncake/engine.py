# SPDX-License-Identifier: Apache-2.0
"""kvprobe.engine under the name that vLLM, vllm-ascend and SGLang import."""

from kvprobe.engine import TransferEngine

__all__ = ["TransferEngine"]
