from __future__ import annotations

import pytest

from strata_operator.api.errors import ApiError
from strata_operator.process import check_crd
from tests.operator.cluster.server import Answer, ScriptedServer, refusal


def test_a_missing_crd_says_what_to_install() -> None:
    refused = pytest.raises(ApiError, match="the CRD StrataModel is not installed")
    with ScriptedServer(lambda request: refusal(404, "the server could not find it")) as server, refused:
        check_crd(server.client())


def test_a_missing_right_is_told_in_the_server_s_words() -> None:
    refused = pytest.raises(ApiError, match="cannot list stratamodels")
    with ScriptedServer(lambda request: refusal(403, "cannot list stratamodels")) as server, refused:
        check_crd(server.client())


def test_with_the_rights_of_some_namespaces_no_more_is_asked_for() -> None:
    with ScriptedServer(lambda request: Answer(body={"metadata": {}, "items": []})) as server:
        check_crd(server.client(), ["a", "b"])
    assert [request.path for request in server.requests] == [
        "/apis/strata.ai/v1alpha1/namespaces/a/stratamodels",
        "/apis/strata.ai/v1alpha1/stratanodes",
    ]
