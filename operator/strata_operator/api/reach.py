"""What the controllers behind a route say of it: gateways of an HTTPRoute or InferencePool, or an Ingress's own."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from strata_operator.api.conditions import reason, shorten

ROUTE_KINDS = ("InferencePool", "HTTPRoute", "Ingress")


@dataclass(frozen=True, slots=True)
class Reach:
    """``accepted`` is None while no controller has told of this generation. ``words`` say who, and why not."""

    accepted: bool | None
    words: str = ""
    reason: str = ""  # CamelCase, of one that is not accepted

    @classmethod
    def of(cls, kind: str, obj: Mapping[str, Any]) -> Reach:
        """Read a whole object of ROUTE_KINDS."""
        status = obj.get("status") or {}
        if kind == "Ingress":
            given = (status.get("loadBalancer") or {}).get("ingress") or ()
            addresses = [one.get("ip") or one.get("hostname") or "" for one in given]
            return cls(True, f"at {', '.join(sorted(filter(None, addresses)))}") if any(addresses) else cls(None)
        generation = obj["metadata"].get("generation", 0)
        told = sorted(_told(status.get("parents") or (), generation))
        refused = next((one for one in told if not one[0]), None)
        if refused is not None:
            return cls(False, refused[1], refused[2])
        return cls(True, f"accepted by {', '.join(who for _, who, _ in told)}") if told else cls(None)


def _told(parents: Any, generation: int) -> Iterator[tuple[bool, str, str]]:
    """Of each parent that tells of that generation: whether it accepts, its name (with why not), the reason."""
    for parent in parents:
        ref = parent.get("parentRef") or {}
        who = f"{ref.get('kind') or 'Gateway'} " + "/".join(filter(None, (ref.get("namespace"), ref.get("name"))))
        conditions = [one for one in parent.get("conditions") or () if one.get("observedGeneration", 0) >= generation]
        bad = next((one for one in conditions if one.get("status") == "False" and one.get("type") in _GOOD), None)
        if bad is not None:
            why = f"{who}: {bad['type']} is false: {bad.get('reason')}: {shorten(bad.get('message') or '')}"
            yield False, why, reason(bad.get("reason") or "", otherwise="NotAccepted")
        elif any((one.get("type"), one.get("status")) == ("Accepted", "True") for one in conditions):
            yield True, who, ""


_GOOD = ("Accepted", "ResolvedRefs")  # what is true of a route that works
