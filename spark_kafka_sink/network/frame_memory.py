"""FrameMemory: how much the long frames of all connections of a listener may take together.

A frame's memory is reserved as a whole before any of it is allocated, and given back when its request is answered.
So a frame that was begun can always be read to its end. A frame for which too little is left waits in a line, and
those behind it wait too, or a long frame would never have its turn among short ones. Frames that fit into a
connection's own buffer (AHEAD_BYTES of frame.py) take none.
"""

from __future__ import annotations

from collections import deque
from typing import Generic, TypeVar

OwnerT = TypeVar("OwnerT")


class FrameMemory(Generic[OwnerT]):
    """Used by one thread. An owner reads one frame at a time."""

    def __init__(self, bytes_max: int) -> None:
        self.bytes_max = bytes_max
        self.bytes_left = bytes_max
        self.granted: list[OwnerT] = []
        """Owners that waited and have got their memory now; the caller that serves them empties the list."""
        self._waiting: deque[tuple[OwnerT, int]] = deque()
        self._reading: dict[OwnerT, int] = {}

    def take(self, owner: OwnerT, size: int) -> bool:
        """Reserve memory for the frame that begins here. False: `granted` will say when the owner has it."""
        if self._waiting or size > self.bytes_left:
            self._waiting.append((owner, size))
            return False
        self._reserve(owner, size)
        return True

    def pass_on(self, owner: OwnerT) -> int:
        """The owner's frame is complete; its receiver gives these bytes back."""
        return self._reading.pop(owner, 0)

    def give(self, size: int) -> None:
        self.bytes_left += size
        while self._waiting and self._waiting[0][1] <= self.bytes_left:
            owner, wanted = self._waiting.popleft()
            self._reserve(owner, wanted)
            self.granted.append(owner)

    def leave(self, owner: OwnerT) -> None:
        """The owner is gone, in the middle of a frame or waiting for one."""
        self._waiting = deque(each for each in self._waiting if each[0] is not owner)
        self.granted = [each for each in self.granted if each is not owner]
        self.give(self._reading.pop(owner, 0))

    def _reserve(self, owner: OwnerT, size: int) -> None:
        self.bytes_left -= size
        self._reading[owner] = size
