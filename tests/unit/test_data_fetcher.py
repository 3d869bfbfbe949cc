"""What comes from a data service in any order, or not at all, is put into its order."""

import itertools
import threading
import time

import pytest
import tensorflow as tf

from phalanx.data.service.reorder_buffer import Fetcher


def here(position):
    return ["here", position]


def fetched(remote, count, start=0, **options):
    fetcher = Fetcher(remote, here, **{"max_wait": 20, **options})
    found = [list(fetcher.fetch(p)) for p in range(start, start + count)]
    fetcher.close()
    return found, fetcher.made_here


def in_pairs_exchanged(start):
    for number in itertools.count(start, 2):
        yield number + 1, "there", number + 1
        yield number, "there", number


def without(*lost):
    def remote(start):
        return ((n, "there", n) for n in itertools.count(start) if n not in lost)

    return remote


def test_any_order_becomes_the_order():
    found, made_here = fetched(in_pairs_exchanged, 10)
    assert found == [["there", n] for n in range(10)]
    assert made_here == 0


def test_what_is_lost_is_made_here():
    found, made_here = fetched(without(3, 5), 9, ahead=4)
    assert found == [["here" if n in (3, 5) else "there", n] for n in range(9)]
    assert made_here == 2


def test_what_comes_too_late_is_left_aside():
    late = threading.Event()

    def remote(start):
        yield from ((n, "there", n) for n in range(1, 5))
        late.wait(20)
        yield 0, "there", 0
        yield from ((n, "there", n) for n in itertools.count(5))

    fetcher = Fetcher(remote, here, ahead=4)
    assert fetcher.fetch(0)[0] == "here"
    late.set()
    assert [fetcher.fetch(n)[0] for n in range(1, 12)] == ["there"] * 11


def test_a_stream_that_ends_or_fails_is_continued_with_here(caplog):
    def ends(start):
        yield 0, "there", 0

    def fails(start):
        yield 0, "there", 0
        raise tf.errors.UnavailableError(None, None, "no server\nsome more")

    for remote in (ends, fails):
        found, made_here = fetched(remote, 3)
        assert (found[0][0], made_here) == ("there", 2)
    assert "the data service gives no more: no server" in caplog.text


def test_a_stream_that_is_silent_is_waited_for_once():
    closed = threading.Event()

    def silent(start):
        closed.wait(20)
        yield from ()

    begin = time.monotonic()
    _, made_here = fetched(silent, 4, max_wait=2)
    assert made_here == 4
    assert time.monotonic() - begin < 7, "four times would be eight seconds"
    closed.set()


@pytest.mark.parametrize("start", [0, 7])
def test_another_position_restarts(start):
    opened = []

    def remote(first):
        opened.append(first)
        return without()(first)

    fetcher = Fetcher(remote, here)
    numbers = [5, 6, start, start + 1]
    assert [fetcher.fetch(n)[1] for n in numbers] == numbers
    assert opened == ([5, 0] if start == 0 else [5])


def test_nothing_is_read_when_no_one_fetches_any_more():
    fetcher = Fetcher(without(), here)
    fetcher.fetch(0)
    del fetcher
    for thread in threading.enumerate():
        if thread.name == "phalanx-data-service":
            thread.join(20)
            assert not thread.is_alive()
