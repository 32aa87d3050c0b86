"""The Python API: a model under a budget."""

from collections.abc import Generator, Mapping, Sequence
from dataclasses import dataclass
from operator import index
from pathlib import Path
from types import TracebackType
from typing import Self, cast, overload

from flexinfer.errors import PromptError, check_type
from flexinfer.executor.engine import Chunk
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.options import Options
from flexinfer.executor.sampler import SamplingParams
from flexinfer.executor.session import Progress, Session
from flexinfer.executor.setup import Planned, plan_run
from flexinfer.executor.stats import Stats, measure
from flexinfer.planner.planner import Plan

Prompt = str | Sequence[int]  # text or token ids


@dataclass(frozen=True, slots=True)
class Completion:
    """A finished continuation and what it took."""

    text: str
    token_ids: tuple[int, ...]
    finish_reason: str
    stats: Stats


class LLM:
    """A model held under a RAM budget, ready to continue text.

    `model` is a GGUF file; `ram` a size ("8GiB", bytes; default: what the machine can spare),
    `ctx` the tokens of context to reserve (default: as for a chat), `kv_type` what their keys and
    values are rounded to: "f16", "f32" or "q8_0". With a `device` ("cuda") layers run there,
    in `vram` of its memory, as `strategy` says. Use it as a context manager, or close() it. Threads
    may share it: `generate` and `chat` then wait for each other, streams take turns. A fork
    of the process has to open its own. Raises FlexInferError subclasses.
    """

    def __init__(
        self,
        model: str | Path,
        ram: str | int | None = None,
        ctx: int | None = None,
        *,
        threads: int | None = None,
        kv_type: str = "f16",
        policy: str = "rows",
        prefetch: bool = True,
        prefetch_window: int | None = None,
        io_threads: int | None = None,
        force: bool = False,
        device: str | None = None,
        vram: str | int | None = None,
        strategy: str | None = None,
        prefill_strategy: str | None = None,
        decode_strategy: str | None = None,
    ) -> None:
        opened = open_model(model)
        options = Options(
            ram,
            ctx,
            threads,
            kv_type,
            policy,
            prefetch,
            prefetch_window,
            io_threads,
            force,
            device,
            vram,
            strategy,
            prefill_strategy,
            decode_strategy,
        )
        self._start(opened, plan_run(opened, options), None)

    @classmethod
    def from_plan(cls, model: Model, planned: Planned, progress: Progress | None = None) -> Self:
        """Load `model` as planned before; `progress(phase, done, total)` hears of it."""
        llm = cls.__new__(cls)
        llm._start(model, planned, progress)
        return llm

    def _start(self, model: Model, planned: Planned, progress: Progress | None) -> None:
        self.model = model
        self.planned = planned
        self.session = Session(model, planned.plan, planned.context, progress, planned.device)
        self._before = (0.0, 0)

    @property
    def plan(self) -> Plan:
        return self.planned.plan

    @property
    def stats(self) -> Stats:
        """Of the latest request, up to now."""
        stall_s, read_bytes = self._before
        return measure(self.planned, self.session, stall_s, read_bytes)

    def encode(self, prompt: Prompt) -> list[int]:
        """Token ids of a text; ids stay as they are. Raises PromptError for anything else."""
        if isinstance(prompt, str):
            return self.model.tokenizer.encode(prompt)
        try:
            return [index(token) for token in prompt]
        except TypeError as error:
            raise PromptError(
                f"{prompt!r:.80} is no prompt: {error}", "give a text or token ids"
            ) from error

    def stream(
        self,
        prompt: Prompt,
        params: SamplingParams | None = None,
        progress: Progress | None = None,
    ) -> Generator[Chunk, None, None]:
        """Continue a prompt piece by piece; closing the iterator stops the work. Raises
        PromptError, ReadError.
        """
        params = SamplingParams() if params is None else params
        check_type("params", params, SamplingParams)
        self._before = (self.session.stall_s, self.session.disk_read_bytes)
        ids = self.encode(prompt)
        return self.session.engine.generate(ids, params, progress)

    @overload
    def generate(self, prompt: Prompt, params: SamplingParams | None = None) -> Completion: ...

    @overload
    def generate(
        self, prompt: list[str], params: SamplingParams | None = None
    ) -> list[Completion]: ...

    def generate(
        self, prompt: Prompt | list[str], params: SamplingParams | None = None
    ) -> Completion | list[Completion]:
        """Continue a prompt, or each of a list of texts, to its end."""
        if isinstance(prompt, list) and prompt and isinstance(prompt[0], str):
            return [self._complete(text, params) for text in prompt]
        return self._complete(cast(Prompt, prompt), params)

    def chat(
        self, messages: Sequence[dict[str, str]], params: SamplingParams | None = None
    ) -> Completion:
        """Answer a conversation by the model's own chat template: [{"role": "user", "content":
        ...}, ...].
        """
        if isinstance(messages, str) or not all(isinstance(m, Mapping) for m in messages):
            raise PromptError(
                f"{messages!r:.80} is no conversation",
                'give a list of messages such as {"role": "user", "content": "Hello"}',
            )
        return self._complete(self.model.chat_prompt(list(messages)), params)

    def _complete(self, prompt: Prompt, params: SamplingParams | None) -> Completion:
        text, ids, reason = "", [], ""
        with self.session.engine.turn:  # threads wait for each other rather than for each token
            for chunk in self.stream(prompt, params):
                text += chunk.text
                reason = chunk.finish_reason or reason
                if chunk.token_id is not None:
                    ids.append(chunk.token_id)
            return Completion(text, tuple(ids), reason, self.stats)

    def close(self) -> None:
        self.session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
