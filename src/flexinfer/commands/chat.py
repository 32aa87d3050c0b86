"""`flexinfer run` without a prompt: a conversation on the terminal."""

import argparse
import sys

from flexinfer.commands.console import Console
from flexinfer.commands.loading import announce, load, options, prefill_progress
from flexinfer.commands.models import model_path
from flexinfer.commands.run import check_max_tokens, report, stream_answer, system_message
from flexinfer.errors import PromptError
from flexinfer.executor.model import open_model
from flexinfer.executor.sampler import SamplingParams
from flexinfer.executor.setup import plan_run
from flexinfer.llm import LLM

PROMPT = "> "
HELP = "/clear forgets the conversation, /exit or Ctrl-D ends it, Ctrl-C stops an answer"


def chat(args: argparse.Namespace, params: SamplingParams, console: Console) -> int:
    """Answer line by line until the end of the input.

    Ctrl-C stops an answer, which then counts as said so far; at the prompt it ends the program.
    """
    import readline  # noqa: F401  (input() then edits lines and keeps their history)

    model = open_model(model_path(args.model))
    model.chat_prompt([{"role": "user", "content": ""}])  # refuses a model without a template now
    check_max_tokens(args, model.spec.context_tokens)
    planned = plan_run(model, options(args, args.ram, args.ctx))
    announce(model, planned, console, chat=True)
    context_tokens = planned.plan.workload.context_tokens
    if params.max_tokens > context_tokens:
        console.aside(f"an answer ends with the context, before --max-tokens {params.max_tokens}")
    with load(model, planned, console) as llm:
        console.aside(HELP)
        _converse(llm, args.system, params, console)
    return 0


def _converse(llm: LLM, system: str | None, params: SamplingParams, console: Console) -> None:
    messages = system_message(system)
    while (line := _read_line()) is not None:
        match line.strip():
            case "":
                continue
            case "/exit":
                return
            case "/clear":
                messages = system_message(system)
                continue
            case command if command.startswith("/"):
                console.error(f"no such command: {command.split()[0]}", HELP)
                continue
        question = {"role": "user", "content": line}
        try:
            answer = _answer(llm, [*messages, question], params, console)
        except PromptError as error:
            console.error(str(error), f"{error.hint}; /clear begins a new conversation")
            continue
        if answer:  # a template may refuse an empty one, left by Ctrl-C
            messages += [question, {"role": "assistant", "content": answer}]


def _read_line() -> str | None:
    """The next line; None at the end of the input."""
    try:
        if sys.stdout.isatty():
            return input(PROMPT)
        sys.stderr.write(PROMPT)  # standard output is for text alone
        sys.stderr.flush()
        line = sys.stdin.readline()
        return line.removesuffix("\n") if line else None
    except EOFError:
        print()
        return None


def _answer(
    llm: LLM, messages: list[dict[str, str]], params: SamplingParams, console: Console
) -> str:
    prompt = llm.model.chat_prompt(messages)
    progress = prefill_progress(llm, console, None)
    answer = stream_answer(llm, prompt, params, console, progress, sys.stdout, interruptible=True)
    if not answer.text.endswith("\n"):
        print(flush=True)
    stats = llm.stats
    report(answer, params, stats, stats.disk_read_bytes, console, predicted_ttft=False)
    return answer.text
