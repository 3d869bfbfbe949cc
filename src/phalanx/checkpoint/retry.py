"""Trying again: what storage refuses now, it may take a moment later."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

from tenacity import (
    RetryCallState,
    Retrying,
    retry_if_not_exception_type,
    stop_after_attempt,
    wait_exponential,
    wait_random,
)

from phalanx.errors import ConfigurationError, PhalanxError

T = TypeVar("T")
_log = logging.getLogger(__name__)


@dataclass(frozen=True, kw_only=True)
class RetryPolicy:
    """How often to try again, and how long to wait in between.

    Attributes:
        max_retries: tries after the first.
        first: seconds before the second try; each further wait is twice as long.
        longest: seconds that a wait takes at most.
        jitter: seconds of chance on each wait, so that workers do not try in step.
        sleep: waits; handed in, so that tests need not.
    """

    max_retries: int = 5
    first: float = 0.5
    longest: float = 30.0
    jitter: float = 0.5
    sleep: Callable[[float], None] = time.sleep

    def __post_init__(self) -> None:
        if self.max_retries < 0:
            raise ConfigurationError(f"max_retries must be 0 or more; found {self.max_retries!r}.")

    def call_with_retry(self, what: str, action: Callable[[], T]) -> T:
        """Do it, and again where storage fails; the last failure is raised.

        An error of ours is no failure of storage, and is raised at once.

        Args:
            what: for the log: "write shard 0 of step 100".
            action: is done from its start at each try.
        """

        def say(state: RetryCallState) -> None:
            error = state.outcome.exception() if state.outcome else None
            pause = state.next_action.sleep if state.next_action else 0.0
            _log.warning("could not %s (%s): again in %.1f s", what, error, pause)

        tries = Retrying(
            retry=retry_if_not_exception_type(PhalanxError),
            stop=stop_after_attempt(self.max_retries + 1),
            wait=wait_exponential(multiplier=self.first, max=self.longest)
            + wait_random(0, self.jitter),
            sleep=self.sleep,
            before_sleep=say,
            reraise=True,
        )
        return tries(action)
