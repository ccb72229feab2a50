"""The page about cards that no measurement has come from yet."""

from __future__ import annotations

from tests.plan.consumer_cards import DOCUMENT, REPORTED, plans, with_table


def test_the_page_has_what_the_planner_says() -> None:
    document = DOCUMENT.read_text("utf-8")
    assert with_table(document) == document, "run python -m tests.plan.consumer_cards, and read what it says of it"


def test_no_reported_figure_is_beyond_what_is_possible() -> None:
    """Else a rate, a size or the report is wrong."""
    at_most = {(planned.card, planned.model): planned.decode["tokens_per_second"] for planned in plans()}
    assert all(most < at_most[case] for case, (_, most) in REPORTED.items())
