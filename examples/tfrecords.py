"""Train a small CNN on MNIST from TFRecord files, which this script writes too.

python examples/tfrecords.py --write                    the files, several at a time
phalanx run --workers 2 examples/tfrecords.py           each worker reads its samples of each batch
phalanx run --workers 2 examples/tfrecords.py --stream  the same without an index: from file to file
python examples/tfrecords.py --arrays                   the same samples from memory, to compare
"""

import argparse

import keras
import numpy as np
import tensorflow as tf
from mnist import DATA, build_model

import phalanx


def arrays(limit=None):
    """(images, labels) to train on and to test on, as they lie in the file."""
    with np.load(DATA) as file:
        return [
            (file[f"x_{part}"][:limit], file[f"y_{part}"][:limit].astype("int64"))
            for part in ("train", "test")
        ]


def write(directory, limit):
    train, test = arrays(limit)
    files = phalanx.data.write_tfrecords(train, f"{directory}/train", shards=8)
    files += phalanx.data.write_tfrecords(test, f"{directory}/test", shards=2)
    print(f"wrote {len(files)} files to {directory}")


def sources(options):
    """What to train on and what to test on."""
    if options.arrays:
        return arrays(options.limit)
    pattern = f"{options.directory}/{{}}-*.tfrecord"
    return [
        phalanx.data.tfrecords(pattern.format(part), index=not options.stream)
        for part in ("train", "test")
    ]


def scaled(images, labels):
    return tf.cast(images, tf.float32)[..., tf.newaxis] / 255, labels


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="mnist-tfrecords")
    parser.add_argument("--write", action="store_true", help="write the files and leave")
    parser.add_argument("--stream", action="store_true", help="read without an index")
    parser.add_argument("--arrays", action="store_true", help="train from memory instead")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a global batch")
    parser.add_argument("--limit", type=int, help="the first LIMIT images only")
    options = parser.parse_args()
    if options.write:
        write(options.directory, options.limit)
        return

    train, test = sources(options)
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    model.fit(
        phalanx.data.pipeline(train, options.batch_size, map_batches=scaled),
        epochs=options.epochs,
    )
    held_out = phalanx.data.pipeline(test, 500, map_batches=scaled, shuffle=False)
    _, accuracy = model.evaluate(held_out, verbose=0)
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
