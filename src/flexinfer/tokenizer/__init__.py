"""Tokenizers from GGUF metadata, incremental detokenization, chat templates."""

from flexinfer.tokenizer.chat import ChatTemplate, load_chat_template
from flexinfer.tokenizer.detokenizer import Detokenizer
from flexinfer.tokenizer.load import load_tokenizer
from flexinfer.tokenizer.tokenizer import Tokenizer

__all__ = ["ChatTemplate", "Detokenizer", "Tokenizer", "load_chat_template", "load_tokenizer"]
