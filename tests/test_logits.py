"""Every architecture against `transformers` with the same weights, float32 all the way (design:
≤ 1e-3).
"""

from pathlib import Path

import numpy as np
import pytest
import torch

from engine_tools import locking, opened, sweep_logits
from factory import VOCAB_SIZE, make_gguf
from flexinfer.executor.model import open_model
from flexinfer.formats.quants import BLOCK_TYPES

TOKENS = [1] + [(37 * i * i + 11 * i + 5) % (VOCAB_SIZE - 3) + 3 for i in range(89)]
EACH = range(1, len(TOKENS) + 1)
LLAMA3_ROPE = {
    "rope_type": "llama3",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}

YARN_ROPE = {
    "rope_type": "yarn",
    "rope_theta": 10000.0,
    "factor": 8.0,
    "original_max_position_embeddings": 64,
}
YARN_OWN = YARN_ROPE | {"beta_fast": 16.0, "beta_slow": 2.0, "attention_factor": 1.3}
PLAIN_ROPE = {"rope_type": "default", "rope_theta": 10000.0}
PARTIAL_ROPE = PLAIN_ROPE | {"partial_rotary_factor": 0.5}


def longrope(original_tokens: int) -> dict[str, object]:
    """The tests' sequences are 90 tokens, after which the context is 91."""
    rope = {
        "rope_type": "longrope",
        "rope_theta": 10000.0,
        "short_factor": [1 + pair / 40 for pair in range(32)],
        "long_factor": [2 + pair / 8 for pair in range(32)],
    }
    return {"original_max_position_embeddings": original_tokens, "rope_parameters": rope}


CASES = {
    "llama": ("llama", {}),
    "llama-tied": ("llama", {"tie_word_embeddings": True}),
    "llama-biases": ("llama", {"attention_bias": True, "mlp_bias": True}),
    "llama-rope-freqs": ("llama", {"rope_parameters": LLAMA3_ROPE}),
    "llama-linear": (
        "llama",
        {"rope_parameters": {"rope_type": "linear", "rope_theta": 10000.0, "factor": 2.0}},
    ),
    "llama-yarn": ("llama", {"rope_parameters": YARN_ROPE}),
    "llama-yarn-own": ("llama", {"rope_parameters": YARN_OWN}),
    "mistral": ("mistral", {}),
    "qwen2": ("qwen2", {}),
    "qwen3": ("qwen3", {}),
    "qwen3-tied": ("qwen3", {"tie_word_embeddings": True, "num_key_value_heads": 4}),
    "qwen3-yarn": ("qwen3", {"rope_parameters": YARN_ROPE}),
    "gemma2": ("gemma2", {}),
    "gemma3": ("gemma3", {}),
    "phi3": ("phi3", {}),
    "phi3-window": ("phi3", {"sliding_window": 24}),
    "phi3-partial": ("phi3", {"rope_parameters": PARTIAL_ROPE}),
    "phi3-longrope-short": ("phi3", longrope(128)),
    "phi3-longrope-long": ("phi3", longrope(64)),
    "granite": ("granite", {"attention_bias": True, "mlp_bias": True}),
    "olmo2": ("olmo2", {}),
    "olmo3": ("olmo3", {}),
    "olmo3-yarn": (
        "olmo3",
        {"rope_parameters": {"full_attention": YARN_OWN, "sliding_attention": PLAIN_ROPE}},
    ),
    "smollm3": ("smollm3", {}),
    "exaone4": ("exaone4", {}),
    "exaone4-window": ("exaone4", {"sliding_window": 24, "layer_types": None}),
    "glm4": ("glm4", {"rope_parameters": PARTIAL_ROPE}),
    "ernie4_5": ("ernie4_5", {}),
    "gemma": ("gemma", {}),
    "internlm2": ("internlm2", {}),
}

# Where something depends on a token's place: biases apart, ropes and windows of each kind.
CUT = ["llama-biases", "llama-yarn", "qwen3", "gemma2", "gemma3", "phi3-longrope-long"]
CUT += ["granite", "olmo3", "smollm3", "exaone4-window"]


def reference(model: object) -> np.ndarray:
    with torch.no_grad():
        return model(torch.tensor([TOKENS])).logits[0].float().numpy()


def relative_error(ours: np.ndarray, theirs: np.ndarray) -> float:
    return float(np.abs(ours - theirs).max() / np.abs(theirs).max())


@pytest.mark.parametrize("case", CASES)
def test_logits_equal_transformers(tmp_path: Path, case: str) -> None:
    architecture, overrides = CASES[case]
    theirs = reference(make_gguf(tmp_path / "m.gguf", architecture, **overrides))
    with opened(tmp_path / "m.gguf", len(TOKENS), 1, kv_type="f32") as llm:
        ours = sweep_logits(llm, TOKENS, EACH)
    assert relative_error(ours, theirs) <= 1e-3


@pytest.mark.parametrize("block_type", [t.name for t in BLOCK_TYPES.values() if t.has_kernel])
@pytest.mark.parametrize("architecture", ["llama", "gemma3"])
def test_quantised_weights_differ_by_the_activations_only(
    tmp_path: Path, architecture: str, block_type: str
) -> None:
    """The reference multiplies dequantised weights with float32, ours with int8 activations."""
    model = make_gguf(
        tmp_path / "m.gguf", architecture, block_type=block_type, intermediate_size=512
    )
    theirs = reference(model)
    with opened(tmp_path / "m.gguf", len(TOKENS), 1, kv_type="f32") as llm:
        ours = sweep_logits(llm, TOKENS, EACH)
    assert relative_error(ours, theirs) <= 5e-2
    assert np.corrcoef(ours.ravel(), theirs.ravel())[0, 1] > 0.999


@pytest.mark.parametrize("architecture", ["llama", "gemma2"])
def test_a_q8_0_cache_changes_logits_a_little(tmp_path: Path, architecture: str) -> None:
    """By what a rounding of 1/254 of a block's largest value can do to such a model."""
    make_gguf(tmp_path / "m.gguf", architecture)
    logits = {}
    for kv_type in ("f32", "f16", "q8_0"):
        with opened(tmp_path / "m.gguf", len(TOKENS), 1, kv_type=kv_type) as llm:
            logits[kv_type] = sweep_logits(llm, TOKENS, EACH)
    f16, q8_0 = (relative_error(logits[kv_type], logits["f32"]) for kv_type in ("f16", "q8_0"))
    assert 2 * f16 < q8_0 <= 2e-2


@pytest.mark.parametrize("kv_type", ["f16", "q8_0"])
@pytest.mark.parametrize("case", CUT)
def test_logits_do_not_depend_on_how_the_prompt_is_cut(
    tmp_path: Path, case: str, kv_type: str
) -> None:
    architecture, overrides = CASES[case]
    make_gguf(
        tmp_path / "m.gguf", architecture, block_type="Q4_0", intermediate_size=512, **overrides
    )
    with opened(tmp_path / "m.gguf", len(TOKENS), 1, kv_type=kv_type) as llm:
        single = sweep_logits(llm, TOKENS, EACH)
        for cuts in ([len(TOKENS)], [1, 8, 63, 64, 65, 90], [17, 34, 51, 68, 85, 90]):
            rows = [end - 1 for end in cuts]
            assert np.array_equal(sweep_logits(llm, TOKENS, cuts), single[rows]), cuts


def test_matrices_cut_out_of_one_tensor_stream_like_others(tmp_path: Path) -> None:
    """The gate's 520 rows are no multiple of 16, so that up begins within a group of the file."""
    make_gguf(tmp_path / "m.gguf", "phi3", block_type="Q4_0", intermediate_size=520)
    model = open_model(tmp_path / "m.gguf")
    with locking(model, 1.0) as llm:
        whole = sweep_logits(llm, TOKENS, [30, 60, 90])
    for share in (0.0, 0.4, 0.7):
        with locking(model, share) as llm:
            assert llm.plan.placement.requests
            assert np.array_equal(sweep_logits(llm, TOKENS, [30, 60, 90]), whole)
