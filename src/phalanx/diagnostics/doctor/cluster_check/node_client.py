"""A host that the leading doctor can ask: its own, or another over the channel."""

from __future__ import annotations

import itertools
import time
from collections.abc import Mapping
from typing import Any, Protocol

from phalanx.diagnostics.doctor.cluster_check.node_service import LONGEST, Answers
from phalanx.launch.rendezvous.channel import Channel


class Asked(Protocol):
    """A host."""

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """The answer; `error` is in it where there is none."""


class OwnHost:
    """The leader's."""

    def __init__(self, answers: Answers) -> None:
        self._answers = answers

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """See `Asked`."""
        return self._answers.answer({"do": do, **fields})


class OtherHost:
    """Another, to be asked one thing at a time."""

    def __init__(self, channel: Channel) -> None:
        self._channel = channel
        self._numbers = itertools.count()

    def ask(self, do: str, **fields: Any) -> Mapping[str, Any]:
        """See `Asked`."""
        number, end = next(self._numbers), time.monotonic() + LONGEST
        self._channel.send({"do": do, "ask": number, **fields})
        while time.monotonic() < end:
            answer = self._channel.receive(0.5)
            if answer is not None and answer.get("to") == number:
                return answer
            if answer is None and self._channel.is_lost:
                return {"error": "its connection to the first host broke"}
        return {"error": f"no answer within {LONGEST:.0f} s"}
