# SPDX-License-Identifier: Apache-2.0
"""The store: MooncakeDistributedStore, how it places objects (ReplicateConfig) and where they are
(ReplicaDescriptor). Results are 0, a count or a negative code; STATUS has a few words for each code."""

from kvprobe._enums import ObjectDataType, ReplicaStatus, SoftPinAction
from kvprobe._store import (
    STATUS,
    BufferDescriptor,
    DiskDescriptor,
    LocalDiskDescriptor,
    MemoryDescriptor,
    MooncakeDistributedStore,
    ReplicaDescriptor,
    ReplicateConfig,
    __version__,
)

__all__ = [
    "STATUS",
    "BufferDescriptor",
    "DiskDescriptor",
    "LocalDiskDescriptor",
    "MemoryDescriptor",
    "MooncakeDistributedStore",
    "ObjectDataType",
    "ReplicaDescriptor",
    "ReplicaStatus",
    "ReplicateConfig",
    "SoftPinAction",
]
