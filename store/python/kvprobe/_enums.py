# SPDX-License-Identifier: Apache-2.0
"""The enumerations of the store's interface. Members are ints; str() gives the qualified name."""

import enum


class _NamedIntEnum(enum.IntEnum):
    __str__ = enum.Enum.__str__


class SoftPinAction(_NamedIntEnum):
    """What a put does to the soft pin of an object: leave it, set it, take it away."""

    PRESERVE = 0
    ENABLE = 1
    DISABLE = 2


class ObjectDataType(_NamedIntEnum):
    """What an object holds; a label."""

    UNKNOWN = 0
    KVCACHE = 1
    TENSOR = 2
    WEIGHT = 3
    SAMPLE = 4
    ACTIVATION = 5
    GRADIENT = 6
    OPTIMIZER_STATE = 7
    METADATA = 8
    GENERAL = 9


class ReplicaStatus(_NamedIntEnum):
    """The life of a replica; COMPLETE ones can be read."""

    UNDEFINED = 0
    INITIALIZED = 1
    PROCESSING = 2
    COMPLETE = 3
    REMOVED = 4
    FAILED = 5


for _enum in (SoftPinAction, ObjectDataType, ReplicaStatus):
    _enum.__module__ = "kvprobe.store"
