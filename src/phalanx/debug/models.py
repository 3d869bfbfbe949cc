"""The model of a kept step: from what was written down with it, or from the script."""

from __future__ import annotations

from typing import Any

import keras

from phalanx.doctor.captured import first_fit
from phalanx.errors import OptionError
from phalanx.state.captured import Captured
from phalanx.worker.execute import Target

_BY_SCRIPT = (
    "Name the script: phalanx debug replay RUN --script train.py runs it up to its first fit and "
    "takes the model from there."
)


def model_of(captured: Captured) -> Any:
    """The model, built anew from its configuration.

    Raises:
        OptionError: it was not written down, or needs a class of the script's.
    """
    if captured.config is None:
        raise OptionError(
            f"The kept step holds no model, which could not be written down ({captured.about.model}"
            f"). {_BY_SCRIPT}"
        )
    try:
        model = keras.saving.deserialize_keras_object(dict(captured.config))
    except Exception as error:  # of whatever a class of the user's raises
        first = str(error).strip().splitlines()[0] if str(error).strip() else ""
        raise OptionError(
            f"The kept step's model cannot be built from its configuration alone ("
            f"{type(error).__name__}: {first}). {_BY_SCRIPT} Or give classes of your own "
            "@keras.saving.register_keras_serializable() and a get_config, in a module that "
            "is imported."
        ) from error
    if getattr(model, "optimizer", None) is None:
        raise OptionError(f"The kept step's model is not compiled. {_BY_SCRIPT}")
    return model


def model_of_script(script: str, arguments: list[str]) -> Any:
    """The model that a script is about to train, taken where it calls `fit`.

    Raises:
        OptionError: it calls none.
    """
    found = first_fit(Target(name=script, as_module=False, arguments=tuple(arguments)))
    if found is None:
        raise OptionError(f"{script} calls no fit, so there is no model to take. Name the script.")
    return found.model
