# SPDX-License-Identifier: Apache-2.0
"""The import name that the callers of the store use; the code is in kvprobe."""
