"""The flight recorder: what each worker did last, kept where its end does not reach it."""
