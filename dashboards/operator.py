"""The operator itself."""

from __future__ import annotations

from dashboards.panel import NAMESPACE, Dashboard, Panel, Query, Row

_RATE = "[$__rate_interval]"

_WORK = Row(
    "Work",
    (
        Panel(
            "Leaders",
            "Operators that work: one. None means that no change of a model is acted upon; with --lease none there is "
            "no such series.",
            "short",
            (Query("sum(strata_operator_leader)", "leaders"),),
            kind="stat",
            width=4,
        ),
        Panel(
            "Models",
            "StrataModels that the operator knows.",
            "short",
            (
                Query(
                    "count(count by (namespace, model) (strata_model_replicas"
                    '{state="wanted",namespace=~"$namespace"})) or vector(0)',
                    "models",
                ),
            ),
            kind="stat",
            width=4,
        ),
        Panel(
            "Models by condition",
            "How many have which condition, of Accepted, Fits, Cached, NodeTuned, Progressing, Ready and Degraded.",
            "short",
            (
                Query(
                    "sum by (condition) (max by (namespace, model, condition) "
                    '(strata_model_condition{namespace=~"$namespace"}))',
                    "{{condition}}",
                ),
            ),
        ),
        Panel(
            "Queue",
            "Models that wait for a worker. A queue that only grows is an operator that cannot keep up.",
            "short",
            (Query("sum by (pod) (strata_operator_queue_depth)", "{{pod}}"),),
        ),
        Panel(
            "Reconciles by outcome",
            "Of every second. Retries are the API server's doing, errors are defects: see the log.",
            "ops",
            (Query(f"sum by (outcome) (rate(strata_operator_reconciles_total{_RATE}))", "{{outcome}}"),),
            stacked=True,
        ),
        Panel(
            "Time of a reconcile",
            "Percentiles over all models.",
            "s",
            tuple(
                Query(
                    f"histogram_quantile({share}, sum by (le) "
                    f"(rate(strata_operator_reconcile_duration_seconds_bucket{_RATE})))",
                    words,
                )
                for share, words in ((0.5, "median"), (0.95, "95th"), (0.99, "99th"))
            ),
        ),
    ),
)

_SERVER = Row(
    "API server",
    (
        Panel(
            "Requests by verb",
            "Of the operator, every second.",
            "reqps",
            (Query(f"sum by (verb) (rate(strata_operator_api_requests_total{_RATE}))", "{{verb}}"),),
            stacked=True,
        ),
        Panel(
            "Requests that failed",
            "Of the operator, by HTTP status; 0 means no answer. 409 and 404 happen in good order.",
            "reqps",
            (
                Query(
                    f'sum by (status) (rate(strata_operator_api_requests_total{{status!~"2.."}}{_RATE})) or vector(0)',
                    "{{status}}",
                ),
            ),
        ),
        Panel(
            "Requests of agents",
            "Of all node agents, by HTTP status; 0 means no answer.",
            "reqps",
            (Query(f"sum by (status) (rate(strata_agent_api_requests_total{_RATE}))", "{{status}}"),),
        ),
    ),
)

OPERATOR = Dashboard(
    "strata-operator",
    "Strata / Operator",
    "What the operator does, and how the API server answers it.",
    (NAMESPACE,),
    (_WORK, _SERVER),
)
