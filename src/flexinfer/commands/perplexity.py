"""`flexinfer perplexity`: how well a model predicts a text."""

import argparse
import json
import time
from dataclasses import asdict
from pathlib import Path

from flexinfer.commands.console import Console
from flexinfer.commands.figures import count, duration, tokens_rate
from flexinfer.commands.loading import announce, load, options
from flexinfer.commands.models import model_path
from flexinfer.commands.progress import Phase, Progress
from flexinfer.errors import BudgetError, OptionError, PromptError
from flexinfer.executor import perplexity as measure
from flexinfer.executor.model import open_model
from flexinfer.executor.setup import plan_run


def perplexity(args: argparse.Namespace, console: Console) -> int:
    """A chunk is one sweep, so its size is bounded by what the plan lets a sweep carry."""
    if args.decode_strategy is not None:
        raise OptionError(
            "--decode-strategy cannot take effect: nothing is decoded here",
            "give --strategy or --prefill-strategy",
        )
    model = open_model(model_path(args.model))
    tokens = model.tokenizer.encode(read_text(Path(args.file)))
    ctx = args.ctx
    chunks = measure.check_text(tokens, ctx, args.chunks)
    planned = plan_run(model, options(args, args.ram, ctx), ctx, 0)
    if planned.plan.sweep_tokens < ctx:
        raise BudgetError(
            f"a chunk of {ctx} tokens must fit one sweep, which can carry "
            f"{planned.plan.sweep_tokens} tokens at this budget",
            "give more --ram or a smaller --ctx",
        )
    announce(model, planned, console)
    bos_id = model.tokenizer.bos_id if model.tokenizer.add_bos else None
    scoring = Phase(
        "scoring",
        lambda done, total: f"{done} of {count(total, 'chunk')}",
        lambda per_s: tokens_rate(per_s * ctx),
        planned.prediction.ttft_s * chunks,
    )
    with load(model, planned, console) as llm:
        started = time.perf_counter()
        result = measure.perplexity(
            llm.session.engine,
            tokens,
            ctx=ctx,
            chunks=chunks,
            bos_id=bos_id,
            progress=Progress(console, {"score": scoring}),
        )
        seconds = time.perf_counter() - started
    console.clear()
    if args.json:
        print(json.dumps(asdict(result) | {"seconds": seconds}))
    else:
        print(f"perplexity {result.perplexity:.4f}")
        console.aside(
            f"{count(result.scored_tokens, 'token')} scored in {count(result.chunks, 'chunk')} "
            f"of {ctx}, {duration(seconds)}"
        )
    return 0


def read_text(path: Path) -> str:
    """A file's text. Raises OptionError where it cannot be read, PromptError for no UTF-8."""
    if path.is_char_device() or path.is_block_device():  # which need not end
        raise OptionError(f"{path}: is a device, not a text file", "give a file")
    try:
        return path.read_bytes().decode()
    except OSError as error:
        raise OptionError(f"{path}: cannot be read: {error.strerror}", "check the path") from error
    except UnicodeDecodeError as error:
        raise PromptError(
            f"{path}: not UTF-8 text at byte {error.start}", "convert it, for example with iconv"
        ) from error
