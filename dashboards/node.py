"""A node: its cards, and what its models want of it."""

from __future__ import annotations

from dashboards.panel import NODE, Dashboard, Panel, Query, Row

ON = 'node=~"$node"'
_CARD = "{{node}} {{uuid}}"

_CARDS = Row(
    "Cards",
    (
        Panel(
            "Cards that answer",
            "1 for each card that answers its driver, else 0.",
            "short",
            (Query(f"strata_gpu_up{{{ON}}}", _CARD),),
            top=1,
        ),
        Panel(
            "Temperature",
            "Of the chip, and of the memory where the card tells it.",
            "celsius",
            (Query(f"strata_gpu_temperature_celsius{{{ON}}}", f"{_CARD} {{{{sensor}}}}"),),
            warn=83,
            bad=93,
        ),
        Panel(
            "Utilisation",
            "Share of the time in which something ran on the card.",
            "percentunit",
            (Query(f"strata_gpu_utilization_ratio{{{ON}}}", _CARD),),
            top=1,
        ),
        Panel(
            "Power",
            "Drawn now, beside the limit that is in force.",
            "watt",
            (
                Query(f"strata_gpu_power_watts{{{ON}}}", f"{_CARD} drawn"),
                Query(f'strata_gpu_power_limit_watts{{kind="enforced",{ON}}}', f"{_CARD} limit"),
            ),
        ),
        Panel(
            "Power limits",
            "In force, wanted by models, allowed by the temperature governor while it interferes, and the factory's.",
            "watt",
            (
                Query(
                    f'strata_gpu_power_limit_watts{{kind=~"enforced|requested|governor|default",{ON}}}',
                    f"{_CARD} {{{{kind}}}}",
                ),
            ),
        ),
        Panel(
            "Joules per token",
            "Energy of all cards of the node for each token that its engines generated.",
            "joule",
            (Query(f"strata:joules_per_token:rate5m{{{ON}}}", "{{node}}"),),
        ),
        Panel(
            "Clocks",
            "Of the multiprocessors and of the memory, in MHz.",
            "short",
            (Query(f"strata_gpu_clock_megahertz{{{ON}}}", f"{_CARD} {{{{clock}}}}"),),
        ),
        Panel(
            "Throttling",
            "1 while the card slows down for a reason; a card that rests is left out.",
            "short",
            (Query(f'strata_gpu_throttle{{reason!="idle",{ON}}}', f"{_CARD} {{{{reason}}}}"),),
            top=1,
        ),
        Panel(
            "Memory",
            "Of the card: used, and usable (without what the driver keeps).",
            "bytes",
            (Query(f'strata_gpu_memory_bytes{{state=~"used|usable",{ON}}}', f"{_CARD} {{{{state}}}}"),),
        ),
        Panel(
            "Fans",
            "Of their highest speed.",
            "percentunit",
            (Query(f"strata_gpu_fan_ratio{{{ON}}}", _CARD),),
            top=1,
        ),
        Panel(
            "Faults (XIDs)",
            "That the driver told of since the agent started. The first one of a number makes its series: no rate.",
            "short",
            (Query(f"strata_gpu_xids_total{{{ON}}}", f"{_CARD} XID {{{{xid}}}}"),),
        ),
        Panel(
            "Memory errors",
            "That could not be corrected, in the last hour.",
            "short",
            (Query(f"increase(strata_gpu_uncorrected_ecc_errors_total{{{ON}}}[1h])", _CARD),),
        ),
    ),
)

_LINK = Row(
    "PCIe",
    (
        Panel(
            "Generation",
            "Now (1 while a card rests), and the most that card and slot can do.",
            "short",
            (Query(f"strata_gpu_pcie_generation{{{ON}}}", f"{_CARD} {{{{state}}}}"),),
        ),
        Panel(
            "Lanes",
            "Now and at most.",
            "short",
            (Query(f"strata_gpu_pcie_lanes{{{ON}}}", f"{_CARD} {{{{state}}}}"),),
        ),
        Panel(
            "Bytes over the link",
            "NVML's sample of 20 ms, no mean: rx is to the card.",
            "Bps",
            (Query(f"strata_gpu_pcie_bytes_per_second{{{ON}}}", f"{_CARD} {{{{direction}}}}"),),
        ),
        Panel(
            "Bytes of experts to the card",
            "As the node's engines count them, by what for.",
            "Bps",
            (
                Query(
                    "sum by (node, purpose) (rate(strata_expert_bytes_total"
                    f'{{direction="to_vram",{ON}}}[$__rate_interval]))',
                    "{{node}} {{purpose}}",
                ),
            ),
            stacked=True,
        ),
    ),
)

_HOST = Row(
    "Host and agent",
    (
        Panel(
            "Huge pages",
            "That are reserved, and those of them that are free.",
            "bytes",
            (
                Query(
                    f"sum by (node, size, state) (strata_node_hugepages_bytes{{{ON}}})", "{{node}} {{size}} {{state}}"
                ),
            ),
        ),
        Panel(
            "Conditions",
            "Of the StrataNode: 1 while true. Healthy and Tuned should be, the others not.",
            "short",
            (Query(f"strata_node_condition{{{ON}}}", "{{node}} {{condition}}"),),
            top=1,
        ),
        Panel(
            "Agent",
            "1 while the API server takes what the agent tells it.",
            "short",
            (Query(f"strata_agent_connected{{{ON}}}", "{{node}}"),),
            top=1,
        ),
    ),
)

NODES = Dashboard(
    "strata-node",
    "Strata / Node",
    "Cards, links and host of the nodes with an agent.",
    (NODE,),
    (_CARDS, _LINK, _HOST),
)
