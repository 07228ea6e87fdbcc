"""FrameMemory: a limit on the memory that the long frames of all connections of a listener take together.

The memory of a frame is reserved as a whole before any of it is allocated, and released after the request was answered.
A frame that has been started can therefore always be read to its end. Frames that do not fit into the available memory
are queued in order, and so are all frames behind them: otherwise short frames could postpone a long one forever. Frames
that fit into the buffer of their connection (READ_AHEAD_BYTES of frame.py) need no reservation.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")


class FrameMemory(Generic[OwnerT]):
    """Reservations of frame memory by owner, up to `max_bytes` in total.

    Not thread-safe. An owner reads one frame at a time, so it has at most one reservation.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.available_bytes = max_bytes
        self.granted_owners: list[OwnerT] = []
        """Owners whose queued reservation was granted. The caller resumes them and empties the list."""
        self._queue: deque[tuple[OwnerT, int]] = deque()
        self._reservations: dict[OwnerT, int] = {}

    def try_reserve(self, owner: OwnerT, size: int) -> bool:
        """Reserve memory for the owner's next frame, or queue the reservation and return False.

        A queued owner appears in `granted_owners` once it has its memory.
        """
        if self._queue or size > self.available_bytes:
            self._queue.append((owner, size))
            return False
        self._reserve(owner, size)
        return True

    def detach(self, owner: OwnerT) -> int:
        """Detach a complete frame from its owner.

        Return the number of bytes that the receiver of the frame must release.
        """
        return self._reservations.pop(owner, 0)

    def release(self, size: int) -> None:
        self.available_bytes += size
        while self._queue and self._queue[0][1] <= self.available_bytes:
            owner, queued_size = self._queue.popleft()
            self._reserve(owner, queued_size)
            self.granted_owners.append(owner)

    def remove_owner(self, owner: OwnerT) -> None:
        """Cancel the owner's queued reservation and release its memory."""
        self._queue = deque(entry for entry in self._queue if entry[0] is not owner)
        self.granted_owners = [granted_owner for granted_owner in self.granted_owners if granted_owner is not owner]
        self.release(self._reservations.pop(owner, 0))

    def _reserve(self, owner: OwnerT, size: int) -> None:
        self.available_bytes -= size
        self._reservations[owner] = size
