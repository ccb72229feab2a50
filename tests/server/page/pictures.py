"""``make pictures``: writes the pictures of docs/web-page.md, of a server that works on a model beyond its VRAM."""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import TYPE_CHECKING, Literal

from strata.engine.fake import FAKE_READY, FakeEngine
from strata.experts.counts import ExpertCounts, ExpertStats
from strata.native.pool import CpuWork
from tests.browser import find_chromium, run_browser
from tests.server.conftest import CHAT_TEMPLATE, SPECIAL, Live, encoder, run_live, write_store

if TYPE_CHECKING:
    from playwright.sync_api import Browser

DOCS = Path(__file__).parents[3] / "docs"
MODEL = "qwen3-30b-a3b"
LAYERS, TOP_K = 48, 8
TOKENS_A_SECOND = 75  # about
FIRST_MS = 170
TENTHS = 48  # not to the end of the answer

QUESTION = "How do I reverse a list in Python?"
ANSWER = """There are two ways:

- `reversed(items)` gives an iterator and leaves the list as it is.
- `items.reverse()` turns the list itself around and returns **nothing**.

```python
items = [1, 2, 3]
print(list(reversed(items)))  # [3, 2, 1]
items.reverse()
print(items)                  # [3, 2, 1]
```

A slice with a negative step, `items[::-1]`, makes a reversed copy as well, which takes the memory of a second list."""


class Offloading(FakeEngine):
    """Whose layers hit more or less, the first and the last of them least."""

    @property
    def experts(self) -> ExpertStats:
        """After as many steps as tokens were given."""
        steps = sum(self._open.values())
        random = Random(1)
        layers = {}
        for layer in range(LAYERS):
            share = 0.92 - 0.5 * abs(layer / (LAYERS - 1) - 0.5) - random.uniform(0, 0.25)
            needed = TOP_K * steps
            hits = round(needed * share)
            layers[layer] = ExpertCounts(needed, hits, (needed - hits) // 2)
        return ExpertStats(layers, 2304, 6144, 2_730_000, CpuWork(steps, 1.0, 1.0, 0, 0))


def take(browser: Browser, live: Live, scheme: Literal["light", "dark"], path: Path) -> None:
    """A picture of the page while an answer comes, as fast as it would from such a model."""
    context = browser.new_context(color_scheme=scheme, viewport={"width": 1200, "height": 900})
    page = context.new_page()
    live.engine.pause()
    page.goto(live.url)
    page.get_by_label("Message", exact=True).fill(QUESTION)
    page.keyboard.press("Enter")
    page.wait_for_timeout(FIRST_MS)
    for tenth in range(TENTHS):
        live.engine.release(TOKENS_A_SECOND // 10 + tenth % 2)
        page.wait_for_timeout(100)
    page.screenshot(path=path)
    context.close()


def main() -> None:
    """Both schemes of colours."""
    executable = find_chromium()
    if executable is None:
        raise SystemExit("error: there is no Chromium here; `make browser` installs it on Debian")
    with tempfile.TemporaryDirectory() as directory:
        store = write_store(Path(directory), CHAT_TEMPLATE, SPECIAL)
        ready = replace(
            FAKE_READY, store_path=str(store), dtype="int4", device="cuda:0", max_model_len=32_768, num_kv_blocks=2048
        )
        engine = Offloading(lambda _: encoder(store)(ANSWER), ready=ready)
        with run_live(engine, name=MODEL) as live, run_browser(executable) as browser:
            take(browser, live, "light", DOCS / "web-page-light.png")
            take(browser, live, "dark", DOCS / "web-page-dark.png")


if __name__ == "__main__":
    main()
