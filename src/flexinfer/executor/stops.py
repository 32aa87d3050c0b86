"""Text as it may be shown: whole characters, cut before a stop string."""

from flexinfer.tokenizer import Detokenizer, Tokenizer


class StopMatcher:
    """Detokenises step by step and holds back what may be the beginning of a stop string."""

    def __init__(self, tokenizer: Tokenizer | None, stops: tuple[str, ...]) -> None:
        self._detokenizer = Detokenizer(tokenizer, continuing=True) if tokenizer else None
        self._stops = stops
        self._held = ""
        self.stopped = False

    def push(self, token: int) -> str:
        """The text that `token` completes; empty while it may still turn into a stop string."""
        return self._release(self._detokenizer.push(token)) if self._detokenizer else ""

    def flush(self) -> str:
        """What is left at the end: an incomplete character, a beginning of a stop string that
        did not come.
        """
        text = self._release(self._detokenizer.flush()) if self._detokenizer else ""
        text, self._held = text + ("" if self.stopped else self._held), ""
        return text

    def _release(self, piece: str) -> str:
        text = self._held + piece
        found = [at for stop in self._stops if (at := text.find(stop)) >= 0]
        if found:
            self.stopped, self._held = True, ""
            return text[: min(found)]
        keep = max(
            (n for stop in self._stops for n in range(1, len(stop)) if text.endswith(stop[:n])),
            default=0,
        )
        self._held = text[len(text) - keep :]
        return text[: len(text) - keep]
