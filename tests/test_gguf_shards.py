"""Split GGUF models, as gguf's own writer splits them."""

import re
from pathlib import Path

import gguf
import pytest

from engine_tools import locking, opened
from factory import make_gguf
from flexinfer import FormatError, SamplingParams
from flexinfer.executor.model import open_model
from flexinfer.formats.open import open_checkpoint

PARAMS = SamplingParams(max_tokens=8, ignore_end=True)
PROMPT = [1, *range(40, 60)]


def split(source: Path, target: Path, tensors: int, drop: str = "") -> list[Path]:
    """Write `source` anew in shards of at most so many tensors."""
    reader = gguf.GGUFReader(source)
    architecture = reader.fields["general.architecture"].contents()
    writer = gguf.GGUFWriter(target, architecture, split_max_tensors=tensors)
    for key, field in reader.fields.items():
        if key.startswith("GGUF.") or key == "general.architecture":
            continue
        kind = field.types[0]
        element = field.types[-1] if kind == gguf.GGUFValueType.ARRAY else None
        writer.add_key_value(key, field.contents(), kind, element)
    for tensor in reader.tensors:
        if tensor.name != drop:
            writer.add_tensor(tensor.name, tensor.data, raw_dtype=tensor.tensor_type)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return sorted(target.parent.glob(f"{target.stem}-*.gguf"))


@pytest.fixture
def whole(tmp_path: Path) -> Path:
    path = tmp_path / "whole.gguf"
    make_gguf(path, "llama", block_type="Q4_0", intermediate_size=512)
    return path


def test_any_shard_opens_the_model_and_the_tokens_are_the_same(whole: Path) -> None:
    shards = split(whole, whole.with_name("a model.gguf"), 9)
    assert len(shards) == 4
    with opened(whole) as llm:
        expected = llm.generate(PROMPT, PARAMS).token_ids
    for shard in shards:
        assert set(open_checkpoint(shard).tensors) == set(open_checkpoint(whole).tensors)
    for share in (0.5, 1.0):
        with locking(open_model(shards[2]), share) as llm:
            assert bool(llm.plan.placement.requests) == (share < 1)
            assert llm.generate(PROMPT, PARAMS).token_ids == expected


def test_missing_shards_are_all_named(whole: Path) -> None:
    shards = split(whole, whole.with_name("m.gguf"), 9)
    shards[1].unlink()
    shards[3].unlink()
    with pytest.raises(FormatError, match=re.escape("m-00002-of-00004.gguf, m-00004-of-00004")):
        open_checkpoint(shards[0])


def test_many_missing_shards_are_no_page_of_names(whole: Path) -> None:
    first, *others = split(whole, whole.with_name("m.gguf"), 2)
    for shard in others:
        shard.unlink()
    with pytest.raises(FormatError, match=f"{len(others)} of {len(others) + 1} .*, …$") as refused:
        open_checkpoint(first)
    assert others[2].name in str(refused.value) and others[3].name not in str(refused.value)


def test_a_shard_of_another_model_is_refused(whole: Path) -> None:
    shards = split(whole, whole.with_name("m.gguf"), 9)
    others = split(whole, whole.with_name("n.gguf"), 9, drop="output.weight")
    others[1].replace(shards[1])
    with pytest.raises(FormatError, match=r"m-00002-of-00004.gguf: says .* of 4; .* needs"):
        open_checkpoint(shards[0])


def test_a_shard_in_the_place_of_another_is_refused(whole: Path) -> None:
    shards = split(whole, whole.with_name("m.gguf"), 9)
    shards[2].write_bytes(shards[1].read_bytes())
    with pytest.raises(FormatError, match=r"says that it is shard 1 of 4; .* needs shard 2 of 4"):
        open_checkpoint(shards[0])


def test_a_renamed_shard_is_refused(whole: Path) -> None:
    shards = split(whole, whole.with_name("m.gguf"), 9)
    renamed = shards[0].rename(whole.with_name("model.gguf"))
    with pytest.raises(FormatError, match=r"shard 0 of 4 .* not named so"):
        open_checkpoint(renamed)


def test_a_cut_shard_names_itself(whole: Path) -> None:
    shards = split(whole, whole.with_name("m.gguf"), 9)
    data = shards[3].read_bytes()
    shards[3].write_bytes(data[:-5000])
    with pytest.raises(FormatError, match=r"m-00004-of-00004.gguf: the file is cut: the tensor"):
        open_checkpoint(shards[0])
