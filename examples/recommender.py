"""A two-tower recommender whose tables are spread over parameter servers.

    phalanx run --strategy parameter-server --workers 2 --ps 2 examples/recommender.py --quick

The ratings are shaped as MovieLens's are (users, items, a rating and its time), and made from a
seeded latent model: an overall mean, a bias and a hidden vector for each user and item, and
noise. So the best that any model can reach on ratings it has not seen is known: the noise's
standard deviation. The script prints the root mean squared error beside it, and beside that of
always answering the mean. Nothing in it speaks of servers; it runs on one device as well.
"""

from __future__ import annotations

import argparse

import keras
import numpy as np

MEAN, BIAS, SPREAD = 3.5, 0.4, 0.6
NOISE = 0.5
"""The standard deviation of a rating around what user and item make of it."""


def ratings(users, items, count, rank, seed):
    """User ids, item ids and ratings; popular items are rated more often."""
    generator = np.random.default_rng(seed)
    user_bias = generator.normal(0, BIAS, users)
    item_bias = generator.normal(0, BIAS, items)
    scale = np.sqrt(SPREAD) / rank**0.25
    user_vectors = generator.normal(0, scale, (users, rank))
    item_vectors = generator.normal(0, scale, (items, rank))
    popularity = 1 / np.arange(1, items + 1) ** 0.5
    user = generator.integers(0, users, count)
    item = generator.choice(items, count, p=popularity / popularity.sum())
    taste = (user_vectors[user] * item_vectors[item]).sum(1)
    rating = MEAN + user_bias[user] + item_bias[item] + taste + generator.normal(0, NOISE, count)
    return user.astype("int32"), item.astype("int32"), rating.astype("float32")[:, None]


def tower(name, count, width):
    """A table of vectors and one of biases, for the ids of one side."""
    ids = keras.Input((), dtype="int32", name=name)
    small = keras.initializers.RandomNormal(stddev=0.1)
    vector = keras.layers.Embedding(count, width, small, name=f"{name}_vectors")(ids)
    bias = keras.layers.Embedding(count, 1, "zeros", name=f"{name}_biases")(ids)
    return ids, vector, bias


def two_towers(users, items, width):
    """A rating is what both sides' biases and vectors make together, around the mean."""
    user, user_vector, user_bias = tower("user", users, width)
    item, item_vector, item_bias = tower("item", items, width)
    taste = keras.layers.Dot(axes=1)([user_vector, item_vector])
    rating = keras.layers.Add()([taste, user_bias, item_bias])
    rating = keras.layers.Rescaling(1.0, offset=MEAN)(rating)
    return keras.Model({"user": user, "item": item}, rating)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a small table, in seconds")
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--batch-size", type=int)
    parser.add_argument("--seed", type=int, default=1, help="of the ratings")
    options = parser.parse_args()

    users, items, count = (300, 200, 40_000) if options.quick else (20_000, 5_000, 2_000_000)
    rank = 4
    user, item, rating = ratings(users, items, count, rank, options.seed)
    train, test = slice(count // 10, None), slice(0, count // 10)

    model = two_towers(users, items, rank)
    model.compile(
        optimizer=keras.optimizers.Adam(1e-2),
        loss="mse",
        metrics=[keras.metrics.RootMeanSquaredError(name="rmse")],
    )
    model.fit(
        {"user": user[train], "item": item[train]},
        rating[train],
        batch_size=options.batch_size or (512 if options.quick else 4096),
        epochs=options.epochs or (8 if options.quick else 5),
        verbose=2,
    )
    unseen = {"user": user[test], "item": item[test]}
    found = model.evaluate(unseen, rating[test], batch_size=4096, verbose=0, return_dict=True)
    print(f"rmse on unseen ratings: {found['rmse']:.3f}")
    print(f"the best there is: {NOISE:.3f}; always the mean: {rating[test].std():.3f}")


if __name__ == "__main__":
    main()
