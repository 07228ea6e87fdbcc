"""FrameMemory: limits the memory that long frames use across all connections of a listener.

A frame's memory is reserved in full before any of it is allocated, so a frame that has been started can always be read
to its end. The reservation is released once the request has been processed. If a frame does not fit into the available
memory, its reservation is queued. All later reservations then queue behind it, because short frames could otherwise
postpone a long one forever. Frames that fit into their connection's buffer (READ_AHEAD_BYTES in frame.py) need no
reservation.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")


class FrameMemory(Generic[OwnerT]):
    """The memory reserved for long frames, by owner, up to `max_bytes` in total.

    Not thread-safe. An owner is a connection. It reads one frame at a time, so it has at most one reservation.
    """

    def __init__(self, max_bytes: int) -> None:
        self.max_bytes = max_bytes
        self.available_bytes = max_bytes
        self.granted_owners: list[OwnerT] = []
        """Owners whose queued reservation has been granted. The caller resumes them and empties the list."""
        self._queue: deque[tuple[OwnerT, int]] = deque()
        self._reservations: dict[OwnerT, int] = {}

    def try_reserve(self, owner: OwnerT, size: int) -> bool:
        """Reserve memory for the owner's next frame, and return whether that succeeded.

        If there is not enough memory, the reservation is queued. Once it is granted, its owner is added to
        `granted_owners`.
        """
        if self._queue or size > self.available_bytes:
            self._queue.append((owner, size))
            return False
        self._reserve(owner, size)
        return True

    def transfer_to_receiver(self, owner: OwnerT) -> int:
        """Transfer a complete frame's reservation from its owner to the frame's receiver.

        Return the number of bytes that the receiver must release; 0 if there was no reservation.
        """
        return self._reservations.pop(owner, 0)

    def release(self, size: int) -> None:
        """Release reserved memory, and grant the queued reservations that now fit, oldest first."""
        self.available_bytes += size
        while self._queue and self._queue[0][1] <= self.available_bytes:
            owner, queued_size = self._queue.popleft()
            self._reserve(owner, queued_size)
            self.granted_owners.append(owner)

    def remove_owner(self, owner: OwnerT) -> None:
        """Cancel the owner's queued reservation and release the memory that is reserved for it."""
        self._queue = deque((queued_owner, size) for queued_owner, size in self._queue if queued_owner is not owner)
        self.granted_owners = [granted_owner for granted_owner in self.granted_owners if granted_owner is not owner]
        self.release(self._reservations.pop(owner, 0))

    def _reserve(self, owner: OwnerT, size: int) -> None:
        self.available_bytes -= size
        self._reservations[owner] = size
