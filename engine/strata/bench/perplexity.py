"""Perplexity of a text under a model, by windows that slide: every token is predicted from half a window or more."""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from strata.bench.loaded import AUTO, check_positive, open_model, table, together
from strata.config import DeviceConfig
from strata.errors import OptionError
from strata.store.files import load_tokenizer

if TYPE_CHECKING:
    from strata.runner.runner import Runner
    from strata.store.progress import Phases


@dataclass(frozen=True, slots=True)
class PerplexityReport:
    """``nll``: mean negative log-likelihood of a token in nats; ``tokens``: how many were predicted."""

    model: str
    dtype: str
    device: str
    text: str
    window: int
    tokens: int
    nll: float

    @property
    def perplexity(self) -> float:
        return math.exp(self.nll)

    def as_dict(self) -> dict[str, Any]:
        """For ``--json``."""
        return {**asdict(self), "perplexity": self.perplexity}

    def lines(self) -> tuple[str, ...]:
        """A table for people."""
        rows = {
            "model": f"{self.model} {self.dtype}",
            "device": self.device,
            "text": f"{self.text}, {self.tokens} tokens predicted, window {self.window}",
            "nll": f"{self.nll:.5f} nats a token",
            "perplexity": f"{self.perplexity:.4f}",
        }
        return table(rows)


def run(
    source: str,
    dtype: str = "int4",
    *,
    text: str | Path,
    window: int = 512,
    device: DeviceConfig = AUTO,
    progress: Phases,
) -> PerplexityReport:
    """Perplexity of the UTF-8 file ``text`` under the model ``source``, which is anything that ``strata serve`` takes.

    ``window``: tokens that one pass sees; half of them are new. ``progress``: called with (phase, done, total).
    Raises UsageError when an argument is at fault.
    """
    check_positive(window=window)
    if window < 2:
        raise OptionError(f"window is {window}; 2 or more is needed: the first token of a window is not predicted")
    try:
        content = Path(text).read_text("utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise OptionError(f"text {str(text)!r} cannot be read as UTF-8: {error}") from error
    loaded = open_model(
        source,
        dtype,
        device=device,
        max_model_len=window,
        progress=progress,
    )
    store, runner = loaded.store, loaded.runner
    token_ids = load_tokenizer(store.path / "tokenizer.json").encode(content).ids
    if len(token_ids) < 2:
        raise OptionError(f"text {str(text)!r} has {len(token_ids)} tokens; 2 or more are needed")
    nll = negative_log_likelihoods(runner, token_ids, window, progress)
    return PerplexityReport(
        model=source,
        dtype=store.dtype,
        device=runner.device_name,
        text=str(text),
        window=window,
        tokens=len(nll),
        nll=math.fsum(nll) / len(nll),
    )


def negative_log_likelihoods(runner: Runner, token_ids: list[int], window: int, progress: Phases) -> list[float]:
    """In nats, of every token but the first, each predicted once: in the first window that reaches it."""
    out: list[float] = []
    stride = max(1, window // 2)
    for begin in range(0, len(token_ids) - 1, stride):
        seen = token_ids[begin : begin + window]
        logits = runner.run_all(together(runner, [seen], 0, len(seen)))
        first = 1 + len(out) - begin  # of the window's tokens, the first that is not yet predicted
        scores = logits[first - 1 : -1].log_softmax(-1)
        targets = scores.new_tensor(seen[first:]).long()
        out.extend((-scores.gather(-1, targets[:, None])[:, 0]).tolist())
        progress("predict", len(out), len(token_ids) - 1)
        if begin + window >= len(token_ids):
            break
    return out
