"""Choosing two numbers of layers by descent: against trying all, where there is one valley."""

from itertools import product

from hypothesis import given
from hypothesis import strategies as st

from flexinfer.planner.search import Counts, least

sizes = st.integers(1, 40)


@given(layers=sizes, data=st.data())
def test_one_valley_is_found(layers: int, data: st.DataObject) -> None:
    at = data.draw(st.tuples(st.integers(0, layers), st.integers(0, layers)))
    seed = data.draw(st.tuples(st.integers(0, layers), st.integers(0, layers)))

    def value(counts: Counts) -> float:
        return abs(counts[0] - at[0]) + 2.0 * abs(counts[1] - at[1])

    best = min(product(range(layers + 1), repeat=2), key=value)
    assert least(value, [seed], layers) == best == at


def test_what_is_refused_everywhere_has_no_least() -> None:
    assert least(lambda counts: float("inf"), [(0, 0), (3, 3)], 3) is None


def test_seeds_far_from_each_other_are_all_looked_at() -> None:
    wells = {(0, 0): 3.0, (80, 80): 1.0}
    assert least(lambda counts: wells.get(counts, 9.0), [(0, 0), (80, 80)], 80) == (80, 80)


def test_a_deep_model_takes_few_looks() -> None:
    looks = []

    def value(counts: Counts) -> float:
        looks.append(counts)
        return abs(counts[0] - 37) + abs(counts[1] - 61)

    assert least(value, [(0, 0)], 80) == (37, 61)
    assert len(looks) == len(set(looks)) < 300  # of 6,561
