"""Train a small CNN on MNIST from PNG files in folders by class, which this script writes too.

python examples/images.py --write                  the files: mnist-images/train/7/00042.png ...
phalanx run --workers 2 examples/images.py         each worker reads its images of each batch
python examples/images.py --arrays                 the same images from memory, to compare
"""

import argparse
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf
from mnist import DATA, build_model

import phalanx


def arrays(part, limit=None):
    """(images, labels) of "train" or "test", as they lie in the file."""
    with np.load(DATA) as file:
        images, labels = file[f"x_{part}"][:limit], file[f"y_{part}"][:limit]
    return images[..., np.newaxis], labels.astype("int64")


def by_class(images, labels):
    """In the order in which the files stand in their folders: the same batches from both."""
    order = np.argsort(labels, kind="stable")
    return images[order], labels[order]


def write(directory, limit):
    """One PNG file for each image, in a folder for its class."""
    with ThreadPoolExecutor() as threads:
        for part in ("train", "test"):
            images, labels = arrays(part, limit)
            top = Path(directory) / part
            for label in range(10):
                (top / str(label)).mkdir(parents=True, exist_ok=True)

            def one(number, image, label, top=top):
                file = top / str(label) / f"{number:05}.png"
                file.write_bytes(tf.io.encode_png(image).numpy())

            wrote = list(threads.map(one, range(len(images)), images, labels))
            print(f"wrote {len(wrote)} images to {top}")


def scaled(images, labels):
    return tf.cast(images, tf.float32) / 255, labels


def shifted(image, label, seed):
    """The image, up to two pixels aside: another way each epoch, the same on any workers."""
    padded = tf.pad(image, [[2, 2], [2, 2], [0, 0]])
    return tf.image.stateless_random_crop(padded, tf.shape(image), seed), label


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--directory", default="mnist-images")
    parser.add_argument("--write", action="store_true", help="write the files and leave")
    parser.add_argument("--arrays", action="store_true", help="train from memory instead")
    parser.add_argument("--shift", action="store_true", help="shift each image at random")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch-size", type=int, default=64, help="samples of a global batch")
    parser.add_argument("--limit", type=int, help="write, or use, the first LIMIT images only")
    options = parser.parse_args()
    if options.write:
        write(options.directory, options.limit)
        return

    if options.arrays:
        train, test = (by_class(*arrays(part, options.limit)) for part in ("train", "test"))
    else:
        train, test = (
            phalanx.data.images(f"{options.directory}/{part}", channels=1)
            for part in ("train", "test")
        )
    model = build_model()
    model.compile(
        optimizer=keras.optimizers.Adam(1e-3),
        loss=keras.losses.SparseCategoricalCrossentropy(from_logits=True),
        metrics=["accuracy"],
    )
    batches = phalanx.data.pipeline(
        train,
        options.batch_size,
        seed=1,
        augment=shifted if options.shift else None,
        map_batches=scaled,
    )
    phalanx.fit(model, batches, epochs=options.epochs)
    held_out = phalanx.data.pipeline(test, 500, shuffle=False, map_batches=scaled)
    _, accuracy = phalanx.evaluate(model, held_out, verbose=0)
    print(f"test accuracy: {accuracy:.4f}")


if __name__ == "__main__":
    main()
