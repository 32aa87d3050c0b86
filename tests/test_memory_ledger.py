import pytest

from flexinfer.errors import BudgetError
from flexinfer.memory.ledger import Category, Ledger


def test_charges_add_up_by_category_in_the_order_of_the_plan() -> None:
    ledger = Ledger(100)
    ledger.charge(Category.RING, 10)
    ledger.charge(Category.LOCKED, 20)
    ledger.charge(Category.RING, 5)
    assert list(ledger.totals.items()) == [(Category.LOCKED, 20), (Category.RING, 15)]
    assert (ledger.charged_bytes, ledger.remaining_bytes) == (35, 65)


def test_the_last_byte_fits_and_the_next_does_not() -> None:
    ledger = Ledger(100)
    ledger.charge(Category.KV_CACHE, 100)
    with pytest.raises(BudgetError) as caught:
        ledger.charge(Category.LOGITS, 1)
    assert str(caught.value) == (
        "logits needs 1 bytes, 0 of 100 are left; charged so far: kv_cache 100 B"
    )
    assert caught.value.hint
    assert ledger.totals == {Category.KV_CACHE: 100}


def test_the_first_charge_can_be_too_large() -> None:
    with pytest.raises(
        BudgetError, match="101 bytes, 100 of 100 are left; charged so far: nothing"
    ):
        Ledger(100).charge(Category.LOCKED, 101)
