"""Questions asked the other way round, against trying every number."""

from hypothesis import given
from hypothesis import strategies as st

from flexinfer.errors import BudgetError
from flexinfer.planner.questions import budgets, least, most, possible
from flexinfer.units import MiB

numbers = st.integers(0, 300)


@given(numbers, numbers, numbers)
def test_the_least_and_the_most_are_those_of_trying_all(edge: int, a: int, b: int) -> None:
    low, high = min(a, b), max(a, b)
    fitting = [n for n in range(low, high + 1) if n >= edge]
    assert least(lambda n: n >= edge, low, high) == (fitting[0] if fitting else None)
    below = [n for n in range(low, high + 1) if n <= edge]
    assert most(lambda n: n <= edge, low, high) == (below[-1] if below else None)


@given(numbers, numbers, st.integers(2, 50))
def test_a_step_is_a_tolerance(edge: int, high: int, step: int) -> None:
    found = least(lambda n: n >= edge, 0, high, step)
    if edge > high:
        assert found is None
    else:
        assert found is not None and edge <= found < edge + step


def test_what_is_refused_for_its_budget_is_not_possible() -> None:
    def attempt(number: int) -> None:
        if number < 3:
            raise BudgetError("too little")

    assert [possible(attempt)(n) for n in range(5)] == [False, False, False, True, True]


def test_budgets_go_from_end_to_end() -> None:
    assert budgets(5, 5, 12) == [5]
    assert budgets(10, 4 * MiB + 10, 5) == [10, MiB, 2 * MiB, 3 * MiB, 4 * MiB + 10]
    assert budgets(MiB, 2 * MiB, 12) == [MiB, 2 * MiB]
