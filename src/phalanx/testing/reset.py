"""What a call of a worker's left behind in the process, undone before the next."""

from __future__ import annotations


def reset(*, keeps_strategy: bool) -> None:
    """Undo what calls do to the state of Keras, TensorFlow and Phalanx.

    Args:
        keeps_strategy: whether this process's own strategy is in force afterwards, else none.
    """
    import keras
    import tensorflow as tf

    import phalanx
    from phalanx.keras_compat.rng import forget_draws
    from phalanx.training.checkpoint_manager import forget_fits
    from phalanx.training.nonfinite_capture import forget_capture_dir

    phalanx.disable()
    forget_fits()
    forget_capture_dir()
    tf.config.run_functions_eagerly(False)
    # A strategy is in force on the default graph, which `clear_session` replaces.
    tf.distribute.experimental_set_strategy(None)
    keras.backend.clear_session()
    if keeps_strategy:
        tf.distribute.experimental_set_strategy(phalanx.strategy())
    tf.random.set_seed(None)
    forget_draws()
