from __future__ import annotations

import json
import logging

import pytest
from starlette.exceptions import HTTPException

from engine_shim.serve.problems import as_problem, envelope, problem_headers, problem_response
from router.contract.errors import (
    BadRequest,
    BodyTooLarge,
    Draining,
    Impossible,
    KVWaitTimeout,
    MethodNotAllowed,
    QuotaExceeded,
    RouteUnknown,
)


def test_the_envelope_has_openais_four_fields():
    assert json.loads(envelope(BadRequest("No.", param="prompt"))) == {
        "error": {"message": "No.", "type": "invalid_request_error", "param": "prompt", "code": "bad_request"}
    }


def test_the_response_has_the_errors_own_status():
    response = problem_response(KVWaitTimeout("Late."))
    assert response.status_code == 504
    assert response.headers["content-type"] == "application/json"
    assert json.loads(response.body)["error"]["code"] == "kv_wait_timeout"


@pytest.mark.parametrize(
    ("error", "headers"),
    [(Draining("x"), {"retry-after": "1"}), (QuotaExceeded("x"), {"retry-after": "1"}), (BadRequest("x"), {})],
)
def test_a_retry_is_suggested_where_it_can_help(error, headers):
    assert problem_headers(error) == headers


@pytest.mark.parametrize(
    ("status", "kind"), [(404, RouteUnknown), (405, MethodNotAllowed), (413, BodyTooLarge), (422, BadRequest)]
)
def test_refusals_of_the_framework_become_client_errors(status, kind):
    assert type(as_problem(HTTPException(status))) is kind


def test_a_member_of_the_tree_stays_itself():
    error = BadRequest("x")
    assert as_problem(error) is error


def test_an_unforeseen_error_is_logged_and_told_without_its_text(caplog):
    with caplog.at_level(logging.ERROR, "tandem.shim"):
        problem = as_problem(ZeroDivisionError("secret"))
    assert type(problem) is Impossible
    assert "secret" not in problem.message
    assert caplog.records[0].exc_info[0] is ZeroDivisionError


def test_a_server_error_of_the_framework_is_unforeseen():
    assert type(as_problem(HTTPException(500))) is Impossible
