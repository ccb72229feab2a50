"""What the API server should have refused, given to the operator all the same: it answers, and does not fall over."""

from __future__ import annotations

import contextlib

from strata_operator.api.errors import InvalidSpecError
from strata_operator.api.model import StrataModel
from strata_operator.fit import judge, least_vram_gib, shape_of
from strata_operator.render import children
from tests.operator.malformed import malformed
from tests.operator.samples import FULL_SPEC, model_object
from tests.operator.test_crd import SPEC

CASES = list(malformed(SPEC, FULL_SPEC))


def test_there_are_enough_and_no_two_are_called_alike() -> None:
    assert len(dict(CASES)) == len(CASES) > 200


def test_none_is_more_than_a_condition() -> None:
    for what, spec in CASES:
        obj = {**model_object(), "spec": spec}
        with contextlib.suppress(InvalidSpecError):
            try:
                made = StrataModel.parse(obj)
                judge(made, shape_of(made), ())
                least_vram_gib(made)
                children(made, engine_image="e")
            except InvalidSpecError:
                raise
            except Exception as error:
                raise AssertionError(f"{what}: {error!r}") from error
