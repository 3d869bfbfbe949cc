"""A generator read by one pass after the other, however far each reads ahead."""

import gc
import itertools
import random
import threading
import time
import weakref

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from phalanx.data.shared_generator import GeneratorPasses, next_batches


def numbers(length=10**9):
    yield from range(length)


def open_passes(generator, peeked=2):
    """What a call of `fit` opens, after Keras has peeked."""
    passes = GeneratorPasses(generator)
    first = list(itertools.islice(passes.peek(), peeked))
    assert passes.first == first
    return passes


def read(iterator, count):
    return list(itertools.islice(iterator, count))


class Reference:
    """What passes get where nothing is read ahead: a list of all that is left."""

    def __init__(self, length):
        self.left = list(range(length))

    def call(self, peeked, taken_by_pass):
        first, rest, used, seen = self.left[:peeked], self.left[peeked:], 0, []
        for taken in taken_by_pass:
            seen.append((first + rest)[:taken])
            used = max(used, taken)
            rest = rest[max(0, taken - len(first)) :]
        self.left = first[used:] + rest
        return seen


CALLS = st.lists(
    st.tuples(
        st.integers(1, 2),  # elements peeked at
        st.lists(  # of each pass: steps, elements read ahead, whether steps are reported at once
            st.tuples(st.integers(0, 6), st.integers(0, 20), st.booleans()), max_size=4
        ),
    ),
    max_size=5,
)


@settings(derandomize=True, deadline=None, max_examples=300)
@given(calls=CALLS, length=st.sampled_from([3, 7, 20, 400]))
def test_passes_begin_with_the_first_element_that_no_step_took(calls, length):
    generator, reference = numbers(length), Reference(length)
    for peeked, by_pass in calls:
        expected = reference.call(peeked, [steps for steps, *_ in by_pass])
        passes = open_passes(generator, peeked)
        for rows, (steps, ahead, at_once) in zip(expected, by_pass, strict=True):
            passes.begin()
            got = read(passes(), steps + ahead)[:steps]
            assert got == rows
            for done in [len(got)] if at_once else range(1, len(got) + 1):
                passes.took(done)
        passes.close()
    assert list(next_batches(generator, None)) == reference.left


@pytest.mark.parametrize("seed", range(6))
def test_threads_that_read_ahead_lose_and_repeat_nothing(seed):
    chance = random.Random(seed)

    def slow():
        for number in itertools.count():
            time.sleep(chance.choice([0, 0, 0.002]))
            yield number

    generator, reference, threads = slow(), Reference(2000), []
    for _ in range(8):
        taken_by_pass = [chance.randrange(1, 7) for _ in range(2)]
        expected = reference.call(2, taken_by_pass)
        passes = open_passes(generator)
        for rows in expected:
            passes.begin()
            made, arrived = [], threading.Semaphore(0)

            def make(elements, most, made=made, arrived=arrived):
                for element in itertools.islice(elements, most):
                    made.append(element)
                    arrived.release()

            threads.append(threading.Thread(target=make, args=(passes(), chance.randrange(8, 40))))
            threads[-1].start()
            for done in range(1, len(rows) + 1):
                arrived.acquire()
                passes.took(done)
            assert made[: len(rows)] == rows
        passes.close()
    for thread in threads:
        thread.join(10)
        assert not thread.is_alive()
    assert read(next_batches(generator, 50), 50) == reference.left[:50]


def test_what_was_peeked_at_and_not_used_comes_again():
    generator = numbers()
    open_passes(generator).close()
    passes = open_passes(generator)
    assert passes.first == [0, 1]
    passes.begin()
    assert read(passes(), 5) == [0, 1, 2, 3, 4]
    passes.took(1)
    passes.close()
    passes.close()
    assert open_passes(generator).first == [1, 2]


def test_nothing_is_read_once_it_is_closed():
    passes = open_passes(numbers())
    passes.begin()
    elements = passes()
    assert next(elements) == 0
    passes.close()
    assert read(elements, 9) == [1]  # peeked at before
    assert read(passes(), 9) == []
    passes.begin()
    assert read(passes(), 9) == []


def test_a_pass_that_is_read_twice_begins_again():
    passes = open_passes(numbers())
    assert read(passes(), 4) == [0, 1, 2, 3]
    passes.took(3)
    assert read(passes(), 4) == [0, 1, 3, 4]


@pytest.mark.parametrize("made", [0, 1, 2, 5, 9, 12])
@pytest.mark.parametrize("skipped", [0, 1, 2, 3, 9])
def test_what_an_earlier_process_took_is_taken_however_much_of_it_is_made(skipped, made):
    generator = numbers()
    passes = open_passes(generator)
    passes.begin(skipped=skipped)
    assert read(passes(), made) == list(range(made))
    passes.close()
    following = open_passes(generator)
    assert following.first == [skipped, skipped + 1]
    following.begin()
    assert read(following(), 4) == list(range(skipped, skipped + 4))


def test_what_the_generator_raises_passes_through_and_what_it_made_is_left():
    def failing():
        yield from range(5)
        raise LookupError("no such row")

    generator = failing()
    passes = open_passes(generator)
    passes.begin()
    elements = passes()
    assert read(elements, 5) == [0, 1, 2, 3, 4]
    passes.took(3)
    with pytest.raises(LookupError, match="no such row"):
        next(elements)
    passes.close()
    assert list(next_batches(generator, None)) == [3, 4]


def test_closing_does_not_wait_for_the_generator():
    goes_on, waits = threading.Event(), threading.Event()

    def blocking():
        yield from range(3)
        waits.set()
        goes_on.wait(30)
        yield from range(3, 100)

    generator = blocking()
    passes = open_passes(generator)
    passes.begin()
    held = threading.Thread(target=read, args=(passes(), 9))
    held.start()
    assert waits.wait(10)
    other = open_passes(generator, peeked=0)  # waits for its turn
    ended = threading.Thread(target=read, args=(other(), 9))
    ended.start()
    for one in (passes, other):
        one.close()
    ended.join(10)
    assert not ended.is_alive()
    assert held.is_alive()
    goes_on.set()
    held.join(10)
    assert read(next_batches(generator, 6), 6) == [0, 1, 2, 3, 4, 5]


def test_two_may_read_at_once_and_share_what_there_is():
    generator = numbers(2000)
    two = [open_passes(generator), open_passes(generator)]
    assert [passes.is_alone for passes in two] == [True, False]
    found = [[], []]

    def make(passes, into):
        passes.begin()
        for element in passes():
            into.append(element)
            passes.took(len(into))

    threads = [threading.Thread(target=make, args=pair) for pair in zip(two, found, strict=True)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(20)
    assert sorted(found[0] + found[1]) == list(range(2000))
    for passes in two:
        passes.close()
    assert GeneratorPasses(generator).is_alone


def test_only_what_is_read_ahead_is_kept_and_nothing_of_a_generator_that_is_not_used():
    class Batch:
        pass

    alive = weakref.WeakSet()

    def batches():
        while True:
            alive.add(batch := Batch())
            yield batch
            del batch

    generator = batches()
    passes = open_passes(generator)
    passes.begin()
    elements = passes()
    for done in range(1, 100):
        next(elements)
        passes.took(done)
    gc.collect()
    assert len(alive) <= 4  # the two first ones, and what the generators hold
    read(elements, 10)
    passes.close()
    del passes, elements, generator
    gc.collect()
    assert len(alive) == 0
