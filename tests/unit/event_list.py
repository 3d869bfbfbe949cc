"""An event log that keeps its events in a list."""

from collections.abc import Callable

from phalanx.monitoring.events import Event


class EventList(list[Event]):
    def append_moment(self, observe: Callable[[], Event]) -> None:
        self.append(observe())
