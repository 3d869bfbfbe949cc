"""Slurm's node lists, by hand and by generated lists."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from phalanx.cluster.environments.slurm import expand
from phalanx.errors import ClusterError

# The left and right of `scontrol show hostnames`, Slurm 22.05, but for those it does not take.
TABLE = {
    "n1": "n1",
    "n[1-3,07,10-12]": "n1 n2 n3 n07 n10 n11 n12",
    "n[08-11]": "n08 n09 n10 n11",
    "n[9-11]": "n9 n10 n11",
    "a[1-2]b[3-4]": "a1b3 a1b4 a2b3 a2b4",
    "n[1-3]-[5]": "n1-5 n2-5 n3-5",
    "n1,n2,login": "n1 n2 login",
    "n[0-1],m[3,5]": "n0 n1 m3 m5",
    "rack[1-2]-n[01-02].cluster": "rack1-n01.cluster rack1-n02.cluster "
    "rack2-n01.cluster rack2-n02.cluster",
    "n[098-101]": "n098 n099 n100 n101",
}


@pytest.mark.parametrize(("text", "names"), TABLE.items())
def test_by_hand(text, names):
    assert expand(text) == tuple(names.split())


@pytest.mark.parametrize(
    "text",
    ["", "n[1-", "n1]", "n[[1]]", "n[a]", "n[3-1]", "n[]", "n1,,n2", "n[0-99999]", "n[1-2]" * 17],
)
def test_what_is_no_list(text):
    with pytest.raises(ClusterError, match="A node list must be such as"):
        expand(text)


PLAIN = st.text("abcxyz-.", min_size=1, max_size=4)
BRACKETS = st.lists(
    st.tuples(st.integers(0, 120), st.integers(0, 12), st.integers(1, 4)), min_size=1, max_size=3
)


def written(ranges):
    """A bracket, and the numbers it stands for."""
    texts, numbers = [], []
    for first, more, width in ranges:
        shown = f"{first:0{width}d}"
        last = first + more
        texts.append(shown if more == 0 else f"{shown}-{last:0{len(shown)}d}")
        numbers += [f"{n:0{len(shown)}d}" for n in range(first, last + 1)]
    return f"[{','.join(texts)}]", numbers


@given(st.lists(st.tuples(PLAIN, st.lists(BRACKETS, max_size=2), PLAIN), min_size=1, max_size=3))
def test_every_list_that_is_written_comes_back(parts):
    texts, names = [], []
    for before, brackets, after in parts:
        text, made = before, [before]
        for ranges in brackets:
            shown, numbers = written(ranges)
            text += shown
            made = [name + number for name in made for number in numbers]
        texts.append(text + after)
        names += [name + after for name in made]
    assert expand(",".join(texts)) == tuple(names)
