"""What a script asks of TensorFlow's devices and threads after its worker has started.

Workers are connected before a script's first line, and TensorFlow refuses to change devices and
threads once it runs. Each function here is tried first; only what TensorFlow refuses is answered
here. What the launcher decides (how many devices, how many threads) is left as it is, with a line
in the log; what would have the script train elsewhere than it says is refused.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import wraps
from typing import Any

import tensorflow as tf

from phalanx.errors import StartedError
from phalanx.worker.strategy_override import replace

_log = logging.getLogger("phalanx")

_GROWTH = "TF_FORCE_GPU_ALLOW_GROWTH"
"""The variable that requests memory growth from TensorFlow before it starts."""

_warned: set[str] = set()
"""What was said: scripts set the same for each GPU."""

_DECIDED = "phalanx run decides what a worker has before the script begins: "


def answer_late_settings() -> ExitStack:
    """Answer calls that come too late, in place of TensorFlow's RuntimeError.

    Close the result to take it back.
    """
    undo = ExitStack()
    _warned.clear()
    answers: dict[str, Callable[..., None]] = {
        "set_logical_device_configuration": _logical_devices,
        "set_virtual_device_configuration": _logical_devices,
        "set_visible_devices": _visible_devices,
        "set_memory_growth": _memory_growth,
        "set_intra_op_parallelism_threads": _threads,
        "set_inter_op_parallelism_threads": _threads,
    }
    for module in public_homes():
        for name, answer in answers.items():
            original = getattr(module, name, None)
            if original is not None:
                undo.callback(replace(module, name, _answered(original, answer)))
    return undo


def public_homes() -> list[Any]:
    """The public modules in which these functions are."""
    configs = [root.config for root in (tf, tf.compat.v2, tf.compat.v1)]
    return [home for each in configs for home in (each, each.experimental, each.threading)]


def _answered(original: Callable[..., Any], answer: Callable[..., None]) -> Callable[..., Any]:
    @wraps(original)
    def setting(*args: Any, **kwargs: Any) -> None:
        try:
            original(*args, **kwargs)
        except RuntimeError as refusal:
            answer(refusal, *args, **kwargs)

    return setting


def _logical_devices(refusal: RuntimeError, device: Any, logical_devices: Sequence[Any]) -> None:
    del refusal
    kind, wanted = device.device_type, len(logical_devices)
    limits = [each.memory_limit for each in logical_devices if each.memory_limit is not None]
    there = len(tf.config.get_logical_device_configuration(device) or [device])
    if wanted == there and not limits:
        return
    if limits:
        _say_once(
            "%s%s is used as one device; the memory limit of set_logical_device_configuration "
            "(%s MB) is not set",
            _DECIDED,
            _name(device),
            " + ".join(f"{limit:g}" for limit in limits),
        )
    if wanted != there:
        _say_once(
            "%s%d logical %s device%s here, where set_logical_device_configuration asks for %d. "
            "More devices are more workers: phalanx run --workers N",
            _DECIDED,
            there,
            kind,
            "" if there == 1 else "s",
            wanted,
        )


def _visible_devices(refusal: RuntimeError, devices: Any, device_type: str | None = None) -> None:
    wanted = list(devices) if isinstance(devices, (list, tuple)) else [devices]
    there = tf.config.get_visible_devices(device_type)
    hidden = {device.device_type for device in there} - {device.device_type for device in wanted}
    requested = ", ".join(map(_name, wanted)) or f"no {device_type or 'device'}"
    found = ", ".join(map(_name, there)) or f"no {device_type or 'device'}"
    if hidden:
        on_cpus = "phalanx run --devices-per-worker cpu:1"
        raise StartedError(
            f"Asked for {requested} by set_visible_devices; found that phalanx run had started "
            f"TensorFlow on {found}, before the script began. Take the line out"
            f"{f', and train on CPUs by {on_cpus}' if 'GPU' in hidden else ''}."
        ) from refusal
    _say_once(
        "%sit sees %s, where set_visible_devices asks for %s. CUDA_VISIBLE_DEVICES and "
        "--devices-per-worker choose",
        _DECIDED,
        found,
        requested,
    )


def _memory_growth(refusal: RuntimeError, device: Any, enable: bool) -> None:
    del refusal
    if bool(enable) == (os.environ.get(_GROWTH, "").lower() in ("true", "1")):
        return
    _say_once(
        "TensorFlow runs before the script begins, so set_memory_growth(%s, %s) comes too late; "
        "for this setting give phalanx run --env %s=%s",
        _name(device),
        bool(enable),
        _GROWTH,
        str(bool(enable)).lower(),
    )


def _threads(refusal: RuntimeError, num_threads: int) -> None:
    del refusal
    _say_once(
        "%sits threads are those of --threads-per-worker, where the script asks for %d",
        _DECIDED,
        num_threads,
    )


def _say_once(text: str, *values: object) -> None:
    message = text % values
    if message not in _warned:
        _warned.add(message)
        _log.info("%s", message)


def _name(device: Any) -> str:
    return str(device.name).rpartition("physical_device:")[2]
