# SPDX-License-Identifier: Apache-2.0
"""kvprobe: a KV-cache store for LLM inference workers whose every step can be watched from outside.

kvprobe.store is the store. The same classes are importable as mooncake.store, the name that vLLM, LMCache and
SGLang use.
"""
