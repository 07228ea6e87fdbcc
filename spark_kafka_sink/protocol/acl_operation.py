"""AclOperation: operations on a resource that a user needs permission for."""

from __future__ import annotations

from enum import Enum


class AclOperation(Enum):
    """The operations on topics that this package checks. The values are the codes in Kafka's protocol."""

    READ = 3
    WRITE = 4
    DESCRIBE = 8

    @property
    def permission(self) -> str:
        """The permission's name, as Kafka's tools write it."""
        return self.name.capitalize()

    def is_in(self, authorized_operations: int) -> bool:
        """Return whether a bit field of authorized operations (KIP-430) contains this operation."""
        return bool(authorized_operations & 1 << self.value)
