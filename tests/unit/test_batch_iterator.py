"""A source walked epoch by epoch, against a plain description of what should come."""

import itertools

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.batch_iterator import BatchIterator

SHORT = pytest.mark.filterwarnings("ignore:The data ended after")
"""Epochs that the data cuts short warn, which is not what these tests are about."""


class FakeSource:
    """Batches numbered from 0 in each pass; an element is (pass, batch)."""

    def __init__(self, length, *, known=True, endless=False, passes=None):
        self.length = length
        self.num_batches = length if known and length is not None else None
        self.endless = endless
        self.opened = []
        self.received = []
        self._passes = itertools.count() if passes is None else iter(range(passes))

    def open(self, position):
        self.opened.append(position)
        if self.endless:
            return ((p // self.length, p % self.length) for p in itertools.count(position))
        turn = next(self._passes, None)
        if turn is None:
            return iter(())
        if self.length is None:
            return ((turn, batch) for batch in itertools.count())
        return iter([(turn, batch) for batch in range(self.length)])

    def open_unread(self):
        self.received.append("open unread")

    def on_epoch_begin(self):
        self.received.append("begin")

    def on_epoch_end(self):
        self.received.append("end")


def walk(source, *, epochs, steps_per_epoch=None, chunk=1, first_epoch=0):
    """Train as `fit` does; for each epoch the elements seen."""
    stream = BatchIterator(source, steps_per_epoch=steps_per_epoch, steps_per_execution=chunk)
    stream.start(first_epoch)
    seen, sizes = [], []
    for _ in range(first_epoch, epochs):
        elements, expected_step = [], 0
        for step, size, iterator in stream.epoch():
            assert step == expected_step
            assert 1 <= size <= chunk
            got = list(itertools.islice(iterator, size))
            sizes.append(size)
            if len(got) < size:
                stream.reached_end(steps_done=len(got))
            elements += got
            expected_step += len(got)
        seen.append(elements)
    return seen, sizes, stream


def plain_reference(length, epochs, steps_per_epoch, *, endless=False):
    """What Keras's own loop, which takes one step at a time, would see."""
    if steps_per_epoch is None:
        return [[(epoch, batch) for batch in range(length)] for epoch in range(epochs)]
    seen, turn, batch = [], 0, 0
    for _ in range(epochs):
        epoch = []
        while len(epoch) < steps_per_epoch:
            if batch == length:
                turn, batch = turn + 1, 0
                if epoch and not endless:
                    break
            epoch.append((turn, batch))
            batch += 1
        seen.append(epoch)
        if batch == length:
            turn, batch = turn + 1, 0
    return seen


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    length=st.integers(1, 9),
    epochs=st.integers(1, 5),
    chunk=st.integers(1, 11),
)
@pytest.mark.parametrize("known", [True, False])
def test_without_steps_per_epoch_an_epoch_is_one_pass(length, epochs, chunk, known):
    source = FakeSource(length, known=known)
    seen, _, stream = walk(source, epochs=epochs, chunk=chunk)
    assert seen == plain_reference(length, epochs, None)
    assert stream.steps == length
    again = ["open unread"] if known else []
    assert source.received == ["end", *epochs * ["begin", *again, "end"]]


@SHORT
@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    length=st.integers(1, 9),
    epochs=st.integers(1, 5),
    chunk=st.integers(1, 11),
    steps=st.integers(1, 12),
)
def test_with_steps_per_epoch_a_pass_continues_across_epochs(length, epochs, chunk, steps):
    seen, _, stream = walk(FakeSource(length), epochs=epochs, chunk=chunk, steps_per_epoch=steps)
    assert seen == plain_reference(length, epochs, steps)
    assert stream.steps == steps


@settings(derandomize=True, deadline=None, max_examples=80)
@given(epochs=st.integers(1, 4), chunk=st.integers(1, 11), steps=st.integers(1, 12))
def test_a_source_without_an_end_is_opened_once(epochs, chunk, steps):
    source = FakeSource(None)
    seen, _, _ = walk(source, epochs=epochs, chunk=chunk, steps_per_epoch=steps)
    flat = [batch for epoch in seen for batch in epoch]
    assert flat == [(0, batch) for batch in range(epochs * steps)]
    assert [len(epoch) for epoch in seen] == [steps] * epochs
    assert source.opened == [0]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(length=st.integers(1, 9), epochs=st.integers(1, 5), chunk=st.integers(1, 11))
def test_an_endless_iterator_of_arrays_is_opened_once_for_all_epochs(length, epochs, chunk):
    source = FakeSource(length, endless=True)
    seen, _, _ = walk(source, epochs=epochs, chunk=chunk)
    assert seen == plain_reference(length, epochs, None)
    assert source.opened == [0]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    length=st.integers(1, 9),
    first=st.integers(0, 4),
    more=st.integers(1, 4),
    chunk=st.integers(1, 5),
)
def test_starting_at_an_epoch_gives_what_a_complete_training_gives_from_there(
    length, first, more, chunk
):
    whole, _, _ = walk(FakeSource(length, endless=True), epochs=first + more, chunk=chunk)
    part, _, _ = walk(
        FakeSource(length, endless=True), epochs=first + more, chunk=chunk, first_epoch=first
    )
    assert part == whole[first:]


@SHORT
@settings(derandomize=True, deadline=None, max_examples=80)
@given(
    length=st.integers(1, 9),
    first=st.integers(0, 4),
    more=st.integers(1, 4),
    chunk=st.integers(1, 5),
    steps=st.integers(1, 9),
)
@pytest.mark.parametrize("endless", [True, False])
def test_starting_at_an_epoch_begins_a_pass_where_steps_per_epoch_is_given(
    length, first, more, chunk, steps, endless
):
    seen, _, _ = walk(
        FakeSource(length, endless=endless),
        epochs=first + more,
        chunk=chunk,
        steps_per_epoch=steps,
        first_epoch=first,
    )
    expected = plain_reference(length, more, steps)
    assert [[b for _, b in epoch] for epoch in seen] == [[b for _, b in e] for e in expected]


@settings(derandomize=True, deadline=None, max_examples=80)
@given(length=st.integers(1, 9), epochs=st.integers(1, 4), chunk=st.integers(1, 11))
def test_executions_are_full_but_for_the_last_of_a_known_epoch(length, epochs, chunk):
    _, sizes, _ = walk(FakeSource(length), epochs=epochs, chunk=chunk)
    full, rest = divmod(length, chunk)
    assert sizes == ([chunk] * full + [rest] * bool(rest)) * epochs


@pytest.mark.parametrize("chunk", [1, 2, 3, 7])
def test_data_that_ends_in_the_middle_of_an_epoch_ends_it_and_warns(chunk):
    source = FakeSource(5, known=False)
    with pytest.warns(UserWarning, match="ended after 5 of the 8 steps_per_epoch"):
        seen, _, _ = walk(source, epochs=1, steps_per_epoch=8, chunk=chunk)
    assert seen == [[(0, batch) for batch in range(5)]]


@pytest.mark.parametrize("chunk", [1, 2, 4])
def test_a_generator_that_ran_out_leaves_the_next_epoch_empty(chunk):
    seen, _, _ = walk(FakeSource(3, known=False, passes=1), epochs=2, chunk=chunk)
    assert seen == [[(0, 0), (0, 1), (0, 2)], []]


def test_the_length_of_an_epoch_is_learned_from_the_first():
    source = FakeSource(4, known=False)
    stream = BatchIterator(source, steps_per_epoch=None, steps_per_execution=1)
    assert stream.steps is None
    for _, size, iterator in stream.epoch():
        if not list(itertools.islice(iterator, size)):
            stream.reached_end(steps_done=0)
    assert stream.steps == 4


@pytest.mark.parametrize("known", [True, False])
def test_an_empty_source_gives_no_step(known):
    seen, _, _ = walk(FakeSource(0, known=known), epochs=2, chunk=3)
    assert seen == [[], []]


@pytest.mark.parametrize("endless", [True, False])
@pytest.mark.parametrize("steps_per_epoch", [None, 3])
def test_starting_again_begins_at_the_first_batch_wherever_the_caller_left(
    endless, steps_per_epoch
):
    source = FakeSource(4, endless=endless)
    stream = BatchIterator(source, steps_per_epoch=steps_per_epoch, steps_per_execution=1)
    for turn in range(3):
        stream.start(0)
        for step, _, iterator in stream.epoch():
            first = next(iterator)
            assert step == 0
            break
        assert first == (0 if endless else turn, 0)


@given(
    batch_size=st.integers(1, 5),
    num_samples=st.integers(1, 23),
    position=st.integers(0, 30),
    steps=st.integers(0, 12),
)
def test_samples_are_counted_with_short_last_batches(batch_size, num_samples, position, steps):
    batches = -(-num_samples // batch_size)
    source = FakeSource(batches, endless=True)
    source.batch_size, source.num_samples = batch_size, num_samples
    sizes = [min(batch_size, num_samples - b * batch_size) for b in range(batches)]
    stream = BatchIterator(source, steps_per_epoch=None, steps_per_execution=steps)
    stream._position = position
    assert stream.samples(steps) == sum(
        sizes[p % batches] for p in range(position, position + steps)
    )


def test_samples_of_batches_of_one_size_and_of_unknown_ones():
    source = FakeSource(None)
    source.batch_size = source.num_samples = None
    stream = BatchIterator(source, steps_per_epoch=9, steps_per_execution=1)
    assert stream.samples(4) is None
    source.batch_size = 8
    assert stream.samples(4) == 32
