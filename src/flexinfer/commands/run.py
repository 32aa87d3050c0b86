"""`flexinfer run` with a prompt: plan, load, stream the text to standard output."""

import argparse
import json
import sys
import time
from contextlib import closing
from dataclasses import asdict, dataclass
from typing import TextIO

from flexinfer.commands.console import Console
from flexinfer.commands.figures import count, tokens_rate
from flexinfer.commands.loading import announce, load, options, prefill_progress
from flexinfer.commands.models import model_path
from flexinfer.commands.progress import Progress
from flexinfer.commands.summary import describe_stats
from flexinfer.errors import OptionError, PromptError
from flexinfer.executor.model import Model, open_model
from flexinfer.executor.sampler import SamplingParams, check_parameter
from flexinfer.executor.setup import plan_run
from flexinfer.executor.stats import Stats
from flexinfer.llm import LLM

ONLY_SAMPLED = ("top_k", "top_p", "min_p", "seed")
SAMPLING = (  # fields of SamplingParams that are options
    *("max_tokens", "temperature", *ONLY_SAMPLED),
    *("repetition_penalty", "presence_penalty", "frequency_penalty", "stop"),
)


@dataclass(frozen=True, slots=True)
class Answer:
    text: str
    token_ids: tuple[int, ...]
    finish_reason: str


def run(args: argparse.Namespace, console: Console) -> int:
    """Answer one prompt, or chat."""
    params = sampling_params(args)
    chatting = args.prompt is None and sys.stdin.isatty()
    if args.raw and args.system is not None:
        raise OptionError("--system cannot take effect with --raw", "put it into the prompt")
    if chatting:
        if args.json or args.raw:
            option = "--json" if args.json else "--raw"
            raise OptionError(f"{option} cannot take effect in a chat", "give a PROMPT")
        from flexinfer.commands.chat import chat

        return chat(args, params, console)
    text = read_prompt(args.prompt)
    model = open_model(model_path(args.model))
    prompt = prompt_ids(model, text, args.system, raw=args.raw)
    check_max_tokens(args, model.spec.context_tokens)
    planned = plan_run(model, options(args, args.ram, args.ctx), len(prompt), params.max_tokens)
    workload = planned.plan.workload
    announce(model, planned, console)
    if workload.new_tokens < params.max_tokens:
        console.aside(f"the context has room for {count(workload.new_tokens, 'new token')}")
    with load(model, planned, console) as llm:
        progress = prefill_progress(llm, console, planned.prediction.ttft_s)
        answer = stream_answer(
            llm, prompt, params, console, progress, None if args.json else sys.stdout
        )
        stats, read = llm.stats, llm.session.disk_read_bytes
    if args.json:
        figures = asdict(stats) | {"disk_read_bytes": read}  # locking included
        print(json.dumps({**asdict(answer), **figures}))
    elif not answer.text.endswith("\n"):
        print()
    sys.stdout.flush()
    report(answer, params, stats, read, console, predicted_ttft=True)
    return 0


def sampling_params(args: argparse.Namespace) -> SamplingParams:
    """Raises OptionError for values out of range, and for options that greedy sampling ignores."""
    given = {name: getattr(args, name) for name in SAMPLING if getattr(args, name) is not None}
    for name, value in given.items():
        check_parameter(name, value, _option(name), "`flexinfer run --help`")
    params = SamplingParams(**given)
    for name in ONLY_SAMPLED:
        if name in given and params.temperature == 0:
            raise OptionError(
                f"{_option(name)} cannot take effect at temperature 0, where the likeliest token "
                "is taken",
                "give a --temperature above 0, for example 0.7",
            )
    return params


def _option(name: str) -> str:
    """As it is typed."""
    return f"--{name.replace('_', '-')}"


def check_max_tokens(args: argparse.Namespace, trained_tokens: int) -> None:
    """Raises OptionError for one that no answer can reach, whatever the prompt and the budget."""
    context_tokens = trained_tokens if args.ctx is None else args.ctx
    if args.max_tokens is not None and args.max_tokens > context_tokens >= 1:
        raise OptionError(
            f"--max-tokens is {args.max_tokens}, the context {context_tokens} tokens",
            f"give {context_tokens} or less: an answer ends with the context at the latest",
        )


def read_prompt(prompt: str | None) -> str:
    """The prompt, or standard input without its last line end. Raises PromptError."""
    if prompt not in (None, "-"):
        return prompt
    data = sys.stdin.buffer.read()
    if not data.strip():
        raise PromptError("no prompt was given and standard input is empty", "give a PROMPT")
    try:
        return data.decode().removesuffix("\n")
    except UnicodeDecodeError as error:
        raise PromptError(
            f"standard input is not UTF-8 text: byte {error.start} is {data[error.start]:#04x}",
            "convert it, for example with iconv",
        ) from error


def prompt_ids(model: Model, text: str, system: str | None, *, raw: bool) -> list[int]:
    """Raises PromptError for a text of no tokens, or one that the model's template refuses."""
    if raw:
        if ids := model.tokenizer.encode(text):
            return ids
        raise PromptError("the prompt is empty and the model adds no token of its own", "give text")
    return model.chat_prompt([*system_message(system), {"role": "user", "content": text}])


def system_message(system: str | None) -> list[dict[str, str]]:
    return [] if system is None else [{"role": "system", "content": system}]


def stream_answer(
    llm: LLM,
    prompt: list[int],
    params: SamplingParams,
    console: Console,
    progress: Progress,
    out: TextIO | None,
    *,
    interruptible: bool = False,
) -> Answer:
    """Write an answer to `out` as it comes. Beside text that goes elsewhere, a live rate on stderr.

    Ctrl-C ends an `interruptible` answer (finish reason "interrupted"), else it is raised.
    """
    text, reason = "", ""
    ids: list[int] = []
    beside = out is None or not out.isatty()
    first_at = 0.0
    try:
        with closing(llm.stream(prompt, params, progress)) as chunks:
            for chunk in chunks:
                if not ids or not beside:
                    console.clear()
                now = time.perf_counter()
                first_at = first_at or now
                text += chunk.text
                reason = chunk.finish_reason or reason
                if chunk.token_id is not None:
                    ids.append(chunk.token_id)
                if out is not None and chunk.text:
                    out.write(chunk.text)
                    out.flush()
                if beside and len(ids) > 1:
                    rate = (len(ids) - 1) / (now - first_at)
                    console.status(f"{count(len(ids), 'token')} · {tokens_rate(rate)}")
    except KeyboardInterrupt:
        if not interruptible:
            raise
        reason = "interrupted"
    console.clear()
    return Answer(text, tuple(ids), reason)


def report(
    answer: Answer,
    params: SamplingParams,
    stats: Stats,
    disk_read_bytes: int,
    console: Console,
    *,
    predicted_ttft: bool,
) -> None:
    """The figures; before them, why a text ends where its model did not end it."""
    if answer.finish_reason == "length":
        cut_by_user = len(answer.token_ids) >= params.max_tokens
        why = f"--max-tokens {params.max_tokens}" if cut_by_user else "the end of the context"
        console.aside(f"cut at {count(len(answer.token_ids), 'token')} by {why}")
    console.aside(describe_stats(stats, disk_read_bytes, predicted_ttft=predicted_ttft))
    if stats.peak_rss_bytes > stats.budget_bytes:
        console.warn("the peak went above the budget, which is a fault of FlexInfer")
