"""The page beside the paper, from figures made by hand: a disk of 1 GB/s, a second of computing.

At 25 % 4 GB stream, at 75 % half a GB; the ring holds 0.1 GB. mmap reads 5 GB at half the disk's
rate. Beside the second run of `rows` at 25 % the disk is half as fast, and it takes twice as long.
"""

import re
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest
from arithmetic import Cell, cells
from candidates import ATTENTION_FIRST, FFN_FIRST, LAYER, MMAP, ROWS, SERIAL_LAYER, TENSOR, Run
from measuring import Record, Shape
from paper import title
from paper_report import report

FIGURES = Path(__file__).parent / "golden" / "paper_b.json"
SCRIPT = Path(__file__).parent.parent / "benchmarks" / "paper_b.py"


@pytest.fixture
def record() -> Record:
    return Record.load(FIGURES)


@pytest.fixture
def both(record: Record) -> list[Cell]:
    return cells(record.models[0])


def test_computing_is_the_serial_runs_time_less_their_reads(both: list[Cell]) -> None:
    assert [cell.compute_s for cell in both] == [1.0, 1.0]
    assert [cell.serial_bytes_per_s for cell in both] == [1e9, 1e9]
    assert [cell.mmap_bytes_per_s for cell in both] == [0.5e9, 0.5e9]
    assert [cell.bound_s for cell in both] == [4.0, 1.0]


@pytest.mark.parametrize(
    ("candidate", "reading_longer", "computing_longer"),
    [
        (MMAP, 1 + 5, 1 + 5),
        (SERIAL_LAYER, 1 + 4, 1 + 0.5),
        (LAYER, 0.2 + 4 - 0.1, 0.9 + 0.4),  # a fifth locked, then nine tenths
        (TENSOR, 4, 1),
        (ATTENTION_FIRST, 4.4, 1),
        (ROWS, (4 + 8) / 2, 1),
    ],
)
def test_time_of_a_token_by_the_formulas(
    both: list[Cell], candidate: str, reading_longer: float, computing_longer: float
) -> None:
    expected = [cell.expected_tpot_s(candidate) for cell in both]
    assert expected == pytest.approx([reading_longer, computing_longer])


def test_gains_are_of_one_round_beside_two_expectations(both: list[Cell]) -> None:
    gain = both[0].gain(MMAP, ROWS)
    assert gain is not None
    assert gain.measured == pytest.approx((11 / 4, 11 / 8))
    assert gain.beside == pytest.approx((6 / 4, 6 / 8))
    assert gain.same == pytest.approx((6 / 4, 6 / 4))
    assert gain.median == pytest.approx(2.0625)


def test_a_round_without_the_other_candidate_has_no_gain(record: Record) -> None:
    model = record.models[0]
    model.runs = [r for r in model.runs if r.candidate != ROWS or r.round == 1]
    gain = cells(model)[0].gain(MMAP, ROWS)
    assert gain is not None and gain.measured == pytest.approx((11 / 8,))
    model.runs = [r for r in model.runs if r.candidate != ROWS]
    assert cells(model)[0].gain(MMAP, ROWS) is None


def line(page: str, start: str) -> list[str]:
    """The cells of the last table row that starts so: the model's own, not the overview's."""
    return [row.split(" | ")[2:] for row in page.splitlines() if row.startswith(f"| {start}")][-1]


def test_the_page_from_the_command(tmp_path: Path) -> None:
    target = tmp_path / "page.md"
    subprocess.run(
        [sys.executable, str(SCRIPT), "--report", str(FIGURES), "--out", str(target)], check=True
    )
    page = target.read_text()
    assert "### Llama-2-70B, 12 of 80 layers" in page
    assert line(page, "ours (`rows`) over mmap")[0] == "**2.06** (1.12); 1.50"
    assert line(page, "balanced (`tensor`)")[0] == "**+2.5 %** (+2.5 %); +2.5 %"
    assert line(page, "flexible (`tensor`) over FFN first")[0] == "**+5.0 %** (+5.0 %); +5.0 %"
    assert "28 runs of ours: 1 text, 0 peaks above the budget." in page
    assert "At 1 of 2 budgets `rows` is the fastest" in page
    assert "differed up to 2.0 times" in page
    assert "Another is faster: Llama-2-70B, 12 of 80 layers at 25 %: `tensor`, by 25.0 %" in page
    assert "Here it is 0.250–0.500, so overlap can give 25.0 to 50.0 %." in page
    assert "Reading is longer than computing at 1 of 2 budgets." in page
    assert "- 90 %: left out; a round takes about 40 minutes" in page
    assert "- `mmap` at 75 %, round 3: exit -9" in page


def test_the_page_tells_a_fault(record: Record) -> None:
    """Other tokens, a peak above the budget, a policy that is faster than ours."""
    model = record.models[0]
    for index, run in enumerate(model.runs):
        if run.candidate == FFN_FIRST and run.percent == 75:
            model.runs[index] = replace(
                run, token_ids=(7, 9), peak_rss_bytes=run.limit_bytes + 1, tpot_s=0.5
            )
    page = report([record], ["x.json"], None)
    assert "2 texts, 2 peaks above the budget" in page
    assert "At 0 of 2 budgets `rows`" in page
    assert "Llama-2-70B, 12 of 80 layers at 75 %: `ffn-first`, by 50.0 %" in page


def test_a_page_without_mmap_and_serial_runs_expects_nothing(record: Record) -> None:
    model = record.models[0]
    model.runs = [r for r in model.runs if r.candidate in (LAYER, TENSOR, ROWS)]
    page = report([record], ["x.json"], None)
    assert "computing was not measured" in page and "mmap** was not measured" in page
    assert line(page, "balanced (`tensor`)")[0] == "**+2.5 %**"
    assert "nan" not in page and not re.search(r"\bNone\b", page)


def test_shapes_are_known_by_their_header() -> None:
    shape = Shape("x", 1, 1, "Q4_0", 32, 4096, 11008, 32, 32)
    assert title(shape) == "Llama-2-7B"
    assert title(replace(shape, layers=31)) == "Llama-2-7B, 31 of 32 layers"
    assert title(replace(shape, dim=4097)) == "x"


def test_figures_survive_the_file_and_a_failure_is_run_again(
    record: Record, tmp_path: Path
) -> None:
    path = tmp_path / "figures.json"
    model = record.models[0]
    assert model.has(75, 1, MMAP) and not model.has(75, 2, MMAP)
    model.add(Run(75, 2, MMAP, 5_500_000_000, 9.0, 1e9, tpot_s=11.0, sweep_read_bytes=5))
    assert model.has(75, 2, MMAP)
    record.save(path)
    again = Record.load(path)
    assert again == record
    assert sum(run.candidate == MMAP for run in again.models[0].runs) == 5
    assert again.model(model.shape, model.base_bytes) is again.models[0]
