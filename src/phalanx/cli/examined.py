"""`phalanx doctor` on machines: what it asks for, and how findings are shown."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console
from rich.text import Text

from phalanx.cli.say import say
from phalanx.cluster.me import Me
from phalanx.cluster.places import Places

if TYPE_CHECKING:
    from phalanx.doctor.here import Here
    from phalanx.doctor.result import Result

_STYLES = {"good": "green", "note": "yellow", "unfit": "bold red"}


@dataclass(frozen=True, kw_only=True)
class Wish:
    """What a person asks the doctor for.

    Attributes:
        directory: where runs are to be written.
        as_json: print JSON, once all is known.
        parameters: of the model whose steps are spoken of.
        startup_timeout: seconds to wait for other hosts.
    """

    directory: Path
    as_json: bool
    parameters: int
    startup_timeout: float


def this_machine(wish: Wish) -> int:
    """Look at this machine; gives the exit code."""
    from phalanx.doctor.all_reduce import on_this_machine
    from phalanx.doctor.checkup import check_up

    told = _Told(as_json=wish.as_json)
    for result in check_up(replace(_here(wish), all_reduced=on_this_machine())):
        told.take(result)
    return told.end("fit for training")


def all_hosts(wish: Wish, places: Places) -> int:
    """Look at all hosts; gives the exit code."""
    from phalanx.doctor.checkup import check_up
    from phalanx.doctor.hosts.doctors import Doctors

    say(f"{places.kind}: {places.why}")
    doctors = Doctors(
        places=places,
        root=wish.directory,
        look=lambda: list(check_up(_here(wish))),
        announce=say,
        parameters=wish.parameters,
        startup_timeout=wish.startup_timeout,
    )
    if not places.leads:
        code = doctors.follow()
        say(f"what was found on all hosts is told on {places.hosts[0] or 'the first of them'}")
        return code
    told = _Told(as_json=wish.as_json)
    links = doctors.lead(told.take)
    return told.end("fit for training together", links=[asdict(link) for link in links])


def _here(wish: Wish) -> Here:
    from phalanx.doctor.here import Here, TensorFlowHere

    return Here(
        environment=os.environ,
        directory=wish.directory.absolute(),
        tensorflow=TensorFlowHere.asked(),
        parameters=wish.parameters,
        me=Me.here(),
    )


@dataclass(kw_only=True)
class _Told:
    """Findings, shown as they come, or as JSON at the end."""

    as_json: bool
    results: list[Result] = field(default_factory=list)

    def take(self, result: Result) -> None:
        self.results.append(result)
        # Of each of many hosts, only what is to be known.
        if not self.as_json and (result.host is None or result.verdict != "good"):
            _show(result)

    def end(self, said: str, **more: Any) -> int:
        """Say what it comes to; gives the exit code."""
        from phalanx.doctor.checkup import is_fit

        fit = is_fit(self.results)
        if self.as_json:
            found = {"fit": fit, "results": [asdict(each) for each in self.results], **more}
            print(json.dumps(found, indent=1))
        else:
            line = said if fit else f"not {said}"
            Console(highlight=False).print(Text(line, style="bold"))
        return 0 if fit else 1


def _show(result: Result) -> None:
    console = Console(highlight=False)
    line = Text(f"{result.verdict:<6}", style=_STYLES[result.verdict])
    where = "" if result.host is None else f"{result.host}: "
    console.print(line + Text(f" {where}{result.check}: {result.what}"), soft_wrap=True)
    if result.mend is not None:
        console.print(Text(f"       mend: {result.mend}", style="cyan"), soft_wrap=True)
