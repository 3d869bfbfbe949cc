"""All but one rank leave before the evaluation, which waits for them."""

import sys

import keras
import phalanx

rank = phalanx.cluster().rank


def main():
    model.fit(x, y, verbose=0)
    if rank != 0:
        return
    model.predict(x)  # expect: fit-on-some-ranks


main()
