"""The contenders, one file each.

Each has a class `Contender`, made once per process with the process's `Place`, and asked
for blocks: `block(model, steps, warm_up) -> Lap`. Everything between two calls
is idle, so that contenders can take turns on the same cores.
"""
