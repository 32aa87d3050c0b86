"""What the paper (arXiv 2503.03777) measured, and on which models."""

from dataclasses import dataclass

from candidates import (
    ATTENTION_FIRST,
    FFN_FIRST,
    LAYER,
    MMAP,
    ROWS,
    SERIAL_LAYER,
    SERIAL_ROWS,
    TENSOR,
)
from measuring import Shape


@dataclass(frozen=True, slots=True)
class PaperModel:
    """One of the paper's models; its method beside mmap, the least and the most."""

    name: str
    layers: int
    over_mmap: tuple[float, float]


MODELS = {  # by width, width of the FFN, kv heads
    (4096, 11008, 32): PaperModel("Llama-2-7B", 32, (5.2, 12.5)),
    (5120, 13824, 40): PaperModel("Llama-2-13B", 40, (5.0, 11.8)),
    (8192, 22016, 8): PaperModel("CodeLlama-34B", 48, (4.2, 10.6)),
    (8192, 28672, 8): PaperModel("Llama-2-70B", 80, (5.0, 11.0)),
}


def paper_model(shape: Shape) -> PaperModel | None:
    return MODELS.get((shape.dim, shape.ffn_dim, shape.kv_heads))


def title(shape: Shape) -> str:
    """`Llama-2-70B, 12 of 80 layers`; a file of no shape of the paper's has its own name."""
    model = paper_model(shape)
    if model is None:
        return shape.name
    if shape.layers == model.layers:
        return model.name
    return f"{model.name}, {shape.layers} of {model.layers} layers"


@dataclass(frozen=True, slots=True)
class Technique:
    """A gain: how much longer a token takes with `slower` than with `faster`."""

    name: str
    slower: str
    faster: str
    percent: bool  # told as +5 %, else as 1.05
    figures: str  # the paper's; "per model": see there; "": not in the paper

    def show(self, ratio: float) -> str:
        return f"{100 * (ratio - 1):+.1f} %" if self.percent else f"{ratio:.2f}"


PER_MODEL = "per model"
ASYNC_LITTLE, ASYNC_MORE = (0.348, 0.594), (0.699, 1.188)  # gains with little memory, with more
TECHNIQUES = (
    Technique("the paper's method (`tensor`) over mmap", MMAP, TENSOR, False, PER_MODEL),
    Technique("ours (`rows`) over mmap", MMAP, ROWS, False, PER_MODEL),
    Technique("synchronous read over mmap", MMAP, SERIAL_LAYER, False, "2.6–3"),
    Technique(
        "asynchronous over synchronous (`layer`)",
        SERIAL_LAYER,
        LAYER,
        True,
        "34.8–59.4 % with little memory, 69.9–118.8 % with more",
    ),
    Technique("the same with ours (`rows`), equal bytes", SERIAL_ROWS, ROWS, True, ""),
    Technique(
        "balanced (`tensor`) over layer-wise", LAYER, TENSOR, True, "9.2–11.1 % at the minimum"
    ),
    Technique("ours (`rows`) over layer-wise", LAYER, ROWS, True, ""),
    Technique(
        "flexible (`tensor`) over attention first", ATTENTION_FIRST, TENSOR, True, "up to 21.9 %"
    ),
    Technique("flexible (`tensor`) over FFN first", FFN_FIRST, TENSOR, True, "up to 14.6 %"),
    Technique("ours (`rows`) over flexible (`tensor`)", TENSOR, ROWS, True, ""),
)
