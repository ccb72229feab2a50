"""The live view: what the server says of itself, in every state."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import pytest

from strata.experts.counts import ExpertCounts, ExpertStats
from strata.server.status import Loading, Status, Traffic
from tests.browser import expect
from tests.server.conftest import Live
from tests.server.page.conftest import Open
from tests.server.test_metrics import EXPERTS, BusyEngine

if TYPE_CHECKING:
    from playwright.sync_api import Page, Route

pytestmark = pytest.mark.real

MakeLive = Callable[..., Live]


def background(page: Page, selector: str) -> list[str]:
    colors: list[str] = page.locator(selector).evaluate_all(
        "items => items.map(item => getComputedStyle(item).backgroundColor)"
    )
    return colors


def test_a_busy_server_shows_speed_queue_and_cache(live: MakeLive, open_page: Open) -> None:
    page = open_page(live(kind=BusyEngine))
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#served")).to_have_text("tiny · bf16 · fake · 256 tokens of context")
    expect(page.locator("#running")).to_have_text("2")
    expect(page.locator("#waiting")).to_have_text("3")
    expect(page.locator("#reason")).to_have_text("The first in the queue waits for room in the KV cache.")
    expect(page.locator("#kv")).to_have_text(
        "224 tokens used, 640 kept for prompts that begin alike, of 1,024"  # blocks of 16
    )
    expect(page.locator("#speed")).to_have_text("0")
    expect(page.locator("#ttft")).to_have_text("–")
    page.get_by_label("Message", exact=True).fill("hi")
    page.keyboard.press("Enter")
    expect(page.locator("#ttft")).to_contain_text("s")
    expect(page.locator("#speed")).not_to_have_text("0")


def test_experts_are_shown_by_tier_and_layer(live: MakeLive, open_page: Open) -> None:
    page = open_page(live(experts=EXPERTS))
    expect(page.locator("#tier-rows tr")).to_have_text(["VRAM43.91 KiB", "Pinned RAM87.81 KiB", "Disk32.93 KiB"])
    widths = [bar.bounding_box() for bar in page.locator("#tier-rows i").all()]
    vram, host, disk = (0.0 if box is None else box["width"] for box in widths)
    assert host > vram > disk > 0
    expect(page.locator("#heat li")).to_have_text(["Layer 0: –", "Layer 2: –"])  # none in this minute
    page.get_by_label("Of which time").select_option("start")
    expect(page.locator("#heat li")).to_have_text(["Layer 0: 75\u202f%", "Layer 2: 50\u202f%"])
    first, second = background(page, "#heat li")
    assert first != second
    page.get_by_text("Figures of each layer").click()
    expect(page.locator("#layer-rows tr")).to_have_text(["04310", "24211"])
    expect(page.locator("#moved")).to_have_text("Moving: over PCIe 0 B/s, read by the CPU 0 B/s, from disk 0 B/s.")


def test_the_heat_map_is_of_the_last_minute(live: MakeLive, open_page: Open) -> None:
    running = live(experts=EXPERTS)
    page = open_page(running)
    expect(page.locator("#heat li")).to_have_count(2)
    layers = {layer: counts + ExpertCounts(10, 2 + layer) for layer, counts in EXPERTS.layers.items()}
    running.engine._experts = ExpertStats(layers, 4, 8, 1000)
    expect(page.locator("#heat li")).to_have_text(["Layer 0: 20\u202f%", "Layer 2: 40\u202f%"])


def test_a_model_in_one_place_says_so(live: MakeLive, open_page: Open) -> None:
    page = open_page(live())
    expect(page.locator("#no-tiers")).to_contain_text("No tiers: all weights of this model lie in one place (fake)")
    expect(page.locator("#tiers")).to_be_hidden()


NEW = Status(
    state="loading",
    error=None,
    version="0.1.0",
    models=["tiny"],
    model=None,
    loading=None,
    traffic=Traffic(prompt_tokens=0, generation_tokens=0, first_tokens=0, first_token_seconds=0),
    requests=None,
    kv_cache=None,
    states=None,
    experts=None,
)


@pytest.mark.parametrize(
    ("changes", "state", "trouble"),
    [
        pytest.param({}, "loading: start", "", id="no phase yet"),
        pytest.param(
            {"loading": Loading(phase="convert", bytes_done=1, bytes_total=4)},
            "loading: convert 25\u202f%",
            "",
            id="a phase",
        ),
        pytest.param({"state": "failed", "error": "no card"}, "failed", "no card", id="failed"),
        pytest.param({"state": "stopping"}, "stopping", "", id="stopping"),
    ],
)
def test_a_server_that_does_not_serve_says_what_it_does(
    live: MakeLive, open_page: Open, changes: dict[str, Any], state: str, trouble: str
) -> None:
    body = NEW.model_copy(update=changes).model_dump_json()
    page = open_page(live(), prepare=lambda page: page.route("**/v1/status", lambda route: route.fulfill(body=body)))
    expect(page.locator("#state")).to_have_text(state)
    expect(page.locator("#trouble")).to_have_text(trouble)
    expect(page.locator("#running")).to_have_text("–")


def test_a_server_that_is_gone_and_comes_back_is_noticed(live: MakeLive, open_page: Open) -> None:
    page = open_page(live())
    expect(page.locator("#state")).to_have_text("ready")
    page.route("**/v1/status", lambda route: route.abort())
    expect(page.locator("#state")).to_have_text("no answer")
    expect(page.get_by_role("alert")).to_have_text("The server cannot be reached.")
    page.unroute("**/v1/status")
    expect(page.locator("#state")).to_have_text("ready")
    expect(page.locator("#trouble")).to_be_hidden()


def test_nobody_is_asked_while_nobody_looks(live: MakeLive, open_page: Open) -> None:
    asked: list[str] = []
    held: list[Route] = []

    def prepare(page: Page) -> None:
        page.clock.install(time=0)
        page.clock.pause_at(1)  # from here on it moves when the test says so
        page.add_init_script(
            "window.away = false; Object.defineProperty(document, 'hidden', {get: () => window.away});"
            "window.look = looks => { window.away = !looks; document.dispatchEvent(new Event('visibilitychange')) }"
        )

    page = open_page(live(), prepare=prepare)
    expect(page.locator("#state")).to_have_text("ready")
    with page.expect_response("**/v1/status"):
        page.clock.run_for(1000)
    page.on("request", lambda request: asked.append(request.url))

    def nobody_looks() -> None:
        page.evaluate("() => fetch('health').then((response) => response.text())")  # by now the last one is shown
        page.clock.run_for(30_000)

    page.evaluate("look(false)")
    nobody_looks()
    assert [url for url in asked if "status" in url] == []
    with page.expect_request("**/v1/status"):
        page.route("**/v1/status", lambda route: held.append(route))
        page.evaluate("look(true)")
    page.evaluate("look(false)")  # while that one is under way
    with page.expect_response("**/v1/status"):
        held.pop().continue_()
    nobody_looks()
    assert len([url for url in asked if "status" in url]) == 1


def test_rates_are_of_what_was_added_and_start_anew_with_the_server(live: MakeLive, open_page: Open) -> None:
    page = open_page(live())
    found = page.evaluate(
        """async () => {
            const { History } = await import("/page/history.js");
            const history = new History();
            const tokens = (status) => status.traffic.generation_tokens;
            const add = (at, number) => history.add(at, { traffic: { generation_tokens: number }, experts: null });
            add(100, 500);
            const alone = history.rate(3, tokens);
            for (const at of [101, 102, 103, 104, 105]) add(at, 500 + 10 * (at - 100));
            const steady = history.rate(3, tokens);
            add(106, 580);
            const recent = history.since(3, tokens);
            const rates = history.rates(tokens).map(({ ago, rate }) => [ago, rate]);
            add(200, 600);
            const kept = history.samples.map((sample) => sample.at);
            add(201, 5);
            return { alone, steady, recent, rates, kept, anew: history.rate(60, tokens) };
        }"""
    )
    assert found == {
        "alone": None,
        "steady": 10,
        "recent": {"added": 50, "seconds": 3},
        "rates": [[5, 10], [4, 10], [3, 10], [2, 10], [1, 10], [0, 30]],
        "kept": [106, 200],
        "anew": None,
    }
