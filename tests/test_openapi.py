"""/openapi.json is true: whatever it allows is answered as it says. Schemathesis makes the requests."""
import re

import pytest
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from schemathesis.checks import CHECKS, load_all_checks

from conftest import SMOLLM2, Server

load_all_checks()
CHECKED = ["not_a_server_error", "status_code_conformance", "content_type_conformance", "response_headers_conformance",
           "response_schema_conformance", "unsupported_method"]


@pytest.fixture(scope="module")
def small():
    """So little context that no answer is long."""
    server = Server(SMOLLM2, "--ctx", "64")
    yield server
    status, log = server.stop()
    assert status == 0, log


def test_answers_are_those_that_are_documented(small):
    operations = [found.ok() for found in schemathesis.openapi.from_url(small.url + "/openapi.json").get_all_operations()]
    for operation in operations:
        if operation.path == "/v1/live":  # never ends
            continue
        print(operation.label)  # shown where the next fails

        @given(case=operation.as_strategy())
        @settings(max_examples=25, deadline=None, derandomize=True, database=None, phases=[Phase.explicit, Phase.generate],
                  suppress_health_check=list(HealthCheck))
        def answers(case):
            case.call_and_validate(checks=CHECKS.get_by_names(CHECKED), timeout=60)
        answers()


def test_every_route_is_documented(small):
    """A path of the table that ends in a slash stands for all that begin with it."""
    documented = {(method.upper(), path) for path, item in small.get("/openapi.json")[1]["paths"].items() for method in item if method != "parameters"}
    routes = set(re.findall(r"<code>([A-Z]+) (\S+)</code>", small.get("/routes")[1]))
    covers = lambda route, op: route[0] == op[0] and (op[1] == route[1] or (len(route[1]) > 1 and route[1].endswith("/") and op[1].startswith(route[1])))
    assert len(routes) > 20
    assert [r for r in routes if not any(covers(r, op) for op in documented)] == []
    assert [op for op in documented if not any(covers(r, op) for r in routes)] == []
