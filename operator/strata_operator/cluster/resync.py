"""Lists all models from time to time: the cache is right even where their watch, which is kopf's, misses something."""

from __future__ import annotations

import logging

from strata_operator.api.model import KIND
from strata_operator.cluster.cache import Cache
from strata_operator.cluster.client import Client
from strata_operator.cluster.loop import Loop

log = logging.getLogger(__name__)

PERIOD_SECONDS = 300.0


class Resync(Loop):
    """Forgets models that are gone (after a list of its own kopf tells of no deletions), enqueues what was missed.

    Kopf's watch hangs where a list has news and kopf brings none at all until the next list.
    """

    def __init__(
        self, client: Client, cache: Cache, *, namespace: str | None = None, period: float = PERIOD_SECONDS
    ) -> None:
        super().__init__(KIND, silent_seconds=period + 300)
        self._namespace = namespace
        if namespace is not None:
            self.name += f" in {namespace}"
        self._client = client
        self._cache = cache
        self._period = period
        self._heard = 0  # events that kopf brought
        self._missed_at: int | None = None  # that number when the last list had news
        self._deaf_at: int | None = None  # that number when it turned out that kopf had brought nothing since

    def heard(self) -> None:
        """To be called for each event of kopf's."""
        self._heard += 1

    def ailment(self) -> str | None:
        """As every loop's; and whether kopf's watch hangs."""
        if self._deaf_at == self._heard:
            return f"kopf's watch of {KIND} hangs"
        return super().ailment()

    def turn(self) -> None:
        """One list, and a pause after it."""
        with self.taking_turns(self._client.listing):
            objects, version = self._client.list_all(KIND, self._namespace)
            heard = self._heard
            self._deaf_at = heard if self._missed_at == heard else None
            news = self._cache.replace_models(objects, int(version), namespace=self._namespace)
        self._missed_at = heard if news else None
        if news and self.synced.is_set():
            log.info("%s: %d models had changed without the watch telling (yet)", self.name, news)
        self.synced.set()
        self.stopped.wait(self._period)
