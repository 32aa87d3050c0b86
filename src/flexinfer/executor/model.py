"""A model opened: headers, spec, the list of its weights, its tokenizer. No weight has been
read.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from flexinfer.errors import FormatError, PromptError, UnsupportedError
from flexinfer.formats.checkpoint import Checkpoint
from flexinfer.formats.open import open_checkpoint
from flexinfer.memory.budget import peak_resident_bytes, resident_bytes
from flexinfer.models.from_gguf import spec_from_gguf
from flexinfer.models.spec import ModelSpec
from flexinfer.models.weights import ModelWeights, collect_weights
from flexinfer.tokenizer import Tokenizer, load_chat_template, load_tokenizer


@dataclass(frozen=True, slots=True)
class Model:
    """What `open_model` returns."""

    checkpoint: Checkpoint
    spec: ModelSpec
    weights: ModelWeights
    tokenizer: Tokenizer
    tokenizer_bytes: int  # resident memory that it added
    earlier_peak_bytes: int  # the most the process held before: another model's, perhaps

    @property
    def path(self) -> Path:
        return self.checkpoint.path

    def chat_prompt(self, messages: list[dict[str, str]]) -> list[int]:
        """Token ids of a conversation by the model's own template. Raises PromptError without
        one.
        """
        with _naming(self.path):
            template = load_chat_template(self.checkpoint.metadata, self.tokenizer)
            text = template.render(messages)
        return self.tokenizer.encode(text)


def open_model(path: str | Path) -> Model:
    """Read headers and build the tokenizer. Raises FlexInferError subclasses."""
    earlier_peak = peak_resident_bytes()
    checkpoint = open_checkpoint(path)
    spec = spec_from_gguf(checkpoint)
    weights = collect_weights(checkpoint, spec)
    base = resident_bytes()
    with _naming(checkpoint.path):
        tokenizer = load_tokenizer(checkpoint.metadata, str(checkpoint.path))
    added = max(0, resident_bytes() - base)
    return Model(checkpoint, spec, weights, tokenizer, added, earlier_peak)


@contextmanager
def _naming(path: Path) -> Iterator[None]:
    """What the metadata lack, have wrong or refuse is said with the name of their file."""
    try:
        yield
    except (FormatError, UnsupportedError, PromptError) as error:
        if str(path) in str(error):  # of an array that could not be decoded
            raise
        raise type(error)(f"{path}: {error}", error.hint) from error
