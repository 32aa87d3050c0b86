"""A plan made real: what is held, what is read, what is given back, and a file that changes."""

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from cli_tools import flexinfer
from engine_tools import locking, opened
from factory import make_gguf
from flexinfer import LLM, ReadError, SamplingParams, _kernels
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.session import ISAS, kernel_context
from flexinfer.memory.budget import resident_bytes
from flexinfer.memory.ledger import Category
from flexinfer.units import MiB
from mounts import Mounts

PROMPT = [1, *range(40, 60)]
SIZES = {"block_type": "Q4_0", "intermediate_size": 512}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("session")


@pytest.fixture(scope="module")
def plain(folder: Path) -> Path:
    make_gguf(folder / "plain.gguf", "llama", **SIZES)
    return folder / "plain.gguf"


@pytest.fixture(scope="module")
def tied(folder: Path) -> Path:
    """The head, 5,000 rows of it, is the embedding."""
    make_gguf(folder / "tied.gguf", "llama", tie_word_embeddings=True, vocab_size=5000, **SIZES)
    return folder / "tied.gguf"


def test_the_instruction_set_is_the_best_or_the_last_up_to_a_cap(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    available = _kernels.available_isas()
    monkeypatch.delenv("FLEXINFER_ISA", raising=False)
    assert kernel_context(1).isa == available[-1]
    for cap in ISAS:
        monkeypatch.setenv("FLEXINFER_ISA", cap)
        allowed = ISAS[: ISAS.index(cap) + 1]
        assert kernel_context(1).isa == max(set(allowed) & set(available), key=ISAS.index)


def tokens(llm: LLM, count: int = 8) -> list[int]:
    params = SamplingParams(max_tokens=count, ignore_end=True)
    return list(llm.generate(PROMPT, params).token_ids)


# --- the plan and the ledger ---


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"kv_type": "f32", "ctx": 64},
        {"kv_type": "q8_0", "ctx": 300},
        {"ctx": 65},
        {"ctx": 512, "prefetch": False, "threads": 1},
        {"ctx": 300, "prompt_tokens": 7},
        {"prompt_tokens": None, "new_tokens": None},  # a chat
    ],
)
def test_the_ledger_holds_what_was_planned(plain: Path, options: dict[str, Any]) -> None:
    with opened(plain, **options) as llm:
        assert llm.session.ledger.totals == llm.plan.parts
        assert llm.plan.arena_bytes - MiB < taken(llm) <= llm.plan.arena_bytes


@pytest.mark.parametrize("policy", ["rows", "tensor"])
@pytest.mark.parametrize(("name", "ram"), [("smollm_path", "130MiB"), ("gemma_path", "250MiB")])
def test_the_ledger_of_a_real_model_holds_what_was_planned(
    name: str, ram: str, policy: str, request: pytest.FixtureRequest
) -> None:
    path = request.getfixturevalue(name)
    done = flexinfer(
        "bench",
        path,
        "--ram",
        ram,
        "--policy",
        policy,
        "--repeat=1",
        "--json",
        "--quiet",
        "--prompt-tokens=70",
        "--new-tokens=2",
    )
    assert done.returncode == 0, done.stderr  # a session asserts it before it is ready
    (run,) = json.loads(done.stdout)["runs"]
    assert run["streamed_bytes_per_sweep"] > 0


@pytest.mark.parametrize("share", [0.0, 0.4, 1.0])
def test_the_ledger_holds_what_was_planned_where_rows_stream(tied: Path, share: float) -> None:
    with locking(open_model(tied), share) as llm:
        assert llm.session.ledger.totals == llm.plan.parts
        assert taken(llm) <= llm.plan.arena_bytes


def taken(llm: LLM) -> int:
    arena = llm.session._arena
    assert arena is not None
    return arena.used_bytes


# --- the embedding and a head tied to it ---


def test_a_tied_head_is_counted_locked_and_streamed_once(tied: Path) -> None:
    model = open_model(tied)
    head = model.checkpoint.tensors["token_embd.weight"]
    others = sum(m.tensor.size_bytes for m in model.weights.matrices[:-1])
    assert head.size_bytes > others // 2
    padding = 8 * head.row_bytes  # 5,000 rows are 313 groups of 16
    with locking(model, 1) as llm:
        before = llm.session.disk_read_bytes
        assert llm.plan.parts[Category.LOCKED] == others + head.size_bytes + padding
        assert 0 <= before - (others + head.size_bytes) < MiB  # blocks around what was locked
        expected = tokens(llm)
    with locking(model, 0) as llm:
        assert llm.plan.parts[Category.LOCKED] == 0
        before = llm.session.disk_read_bytes
        gaps = llm.plan.placement.streamed_bytes - (others + head.size_bytes)
        assert 0 <= gaps < MiB // 16  # norms between matrices, read along
        assert tokens(llm) == expected
    names = [placed.matrix.tensor.name for placed in llm.plan.placement.matrices]
    assert names.count("token_embd.weight") == 1


def test_rows_of_the_embedding_are_read_as_they_are_asked_for(folder: Path) -> None:
    """5,000 rows of which none is held: a token reads its own."""
    make_gguf(folder / "untied.gguf", "llama", vocab_size=5000, **SIZES)
    model = open_model(folder / "untied.gguf")
    table = model.weights.embedding
    with locking(model, 1) as llm:
        locked = sum(m.tensor.size_bytes for m in model.weights.matrices)
        assert llm.plan.parts[Category.LOCKED] < locked + MiB // 16
        assert model.path.stat().st_size - locked > table.size_bytes
        before = llm.session.disk_read_bytes
        tokens(llm, 8)
        swept = len(PROMPT) + 7  # the last token is not swept
        assert llm.session.disk_read_bytes - before == swept * table.row_bytes
        assert llm.stats.disk_read_bytes == swept * table.row_bytes


# --- memory goes back ---


def test_a_smaller_budget_after_a_larger_one(plain: Path) -> None:
    """What the process once held is no reason to refuse what it now needs."""
    block = bytearray(64 * MiB)
    block[::4096] = b"1" * len(block[::4096])
    peak = resident_bytes()
    del block
    with LLM(plain, ram=peak - 8 * MiB, ctx=64) as llm:
        assert llm.plan.budget_bytes < peak
        assert tokens(llm)


# --- places and changes of the file ---


@pytest.mark.parametrize("share", [0.0, 0.5, 1.0])
def test_a_model_runs_wherever_it_is(
    plain: Path, tmp_path: Path, mounts: Mounts, share: float
) -> None:
    """Odd names, links, no leave to write, a file system without direct reads."""
    with locking(open_model(plain), share) as llm:
        expected = tokens(llm)
    odd = tmp_path / "my models – für 日本" / "größe 7b.gguf"
    odd.parent.mkdir()
    shutil.copy(plain, odd)
    odd.chmod(0o400)
    link = tmp_path / "link.gguf"
    link.symlink_to(odd)
    in_memory = mounts.memory("ramfs") / "m.gguf"
    shutil.copy(plain, in_memory)
    for path, direct in ((odd, True), (link, True), (in_memory, False)):
        with locking(open_model(path), share) as llm:
            assert tokens(llm) == expected
            assert llm.session.direct is direct


def truncate(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def overwrite(path: Path) -> None:
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(size // 4)
        file.write(b"\x55" * (size // 2))


def replace(path: Path) -> None:
    other = path.with_name("other")
    shutil.copy(path, other)
    overwrite(other)
    other.replace(path)


CHANGES = [truncate, overwrite, replace]


def copied(plain: Path, tmp_path: Path) -> Path:
    path = tmp_path / "changing.gguf"
    shutil.copy(plain, path)
    os.utime(path, ns=(0, 0))
    return path


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("prefetch", [True, False])
def test_a_file_that_changes_while_it_streams_is_an_error_of_the_request(
    plain: Path, tmp_path: Path, change: Callable[[Path], None], prefetch: bool
) -> None:
    path = copied(plain, tmp_path)
    with locking(open_model(path), 0.5, prefetch=prefetch) as llm:
        stream = llm.stream(PROMPT, SamplingParams(max_tokens=50, ignore_end=True))
        next(stream)
        change(path)
        with pytest.raises(ReadError, match=r"changing\.gguf") as caught:
            list(stream)
        assert caught.value.hint
        with pytest.raises(ReadError):  # and of the next one
            tokens(llm)


@pytest.mark.parametrize("change", CHANGES)
def test_a_file_that_changes_behind_locked_weights_changes_no_text(
    plain: Path, tmp_path: Path, change: Callable[[Path], None]
) -> None:
    """Only rows of the embedding are still read: another file in its place leaves them as they
    were, a change of the file itself is an error.
    """
    path = copied(plain, tmp_path)
    with locking(open_model(path), 1) as llm:
        expected = tokens(llm)
        change(path)
        if change is replace:
            assert tokens(llm) == expected
        else:
            with pytest.raises(ReadError, match=r"changing\.gguf"):
                tokens(llm)


@pytest.mark.parametrize("change", CHANGES)
@pytest.mark.parametrize("share", [0.5, 1.0])
def test_a_file_that_changes_before_it_is_loaded_is_not_loaded(
    plain: Path, tmp_path: Path, change: Callable[[Path], None], share: float
) -> None:
    path = copied(plain, tmp_path)
    model: Model = open_model(path)
    change(path)
    with pytest.raises(ReadError, match=r"changing\.gguf"), locking(model, share):
        pass
