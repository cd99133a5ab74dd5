"""Who starts when, and what is found in the cache, changes no answer: on the CPU greedy ids are the same under every policy."""
import concurrent.futures
import itertools

import pytest
from conftest import SMOLLM2

BEGINNING = "The river rises in the mountains, and on its way to the sea it passes three towns. " * 6
REQUESTS = [{"prompt": BEGINNING + end, "max_tokens": 12, "temperature": 0, "ignore_eos": True, "logprobs": 0}
            for end in ("The first of them", "The second", "The", "In winter", "The second town", "")]
POLICIES = {"continuous": ["scheduler.policy=continuous"], "windowed": ["scheduler.policy=windowed"],
            "dynamic_batching": ["inference.dynamic_batching.enabled=true", "inference.dynamic_batching.max_batch_size=4"],
            "serial": ["scheduler.policy=serial"]}


def answers(server):
    """All at once, then all again, when the cache has them."""
    with concurrent.futures.ThreadPoolExecutor(len(REQUESTS)) as pool:
        both = [list(pool.map(lambda body: server.post("/v1/completions", body), REQUESTS)) for _ in range(2)]
    assert all(status == 200 for status, _ in itertools.chain(*both)), both
    return [[answer["choices"][0]["logprobs"]["tokens"] for _, answer in some] for some in both]


@pytest.fixture(scope="module")
def expected(smollm2):
    """One after the other, each prompt computed anew."""
    return [smollm2.post("/v1/completions", {**body, "cache_salt": str(i)})[1]["choices"][0]["logprobs"]["tokens"]
            for i, body in enumerate(REQUESTS)]


@pytest.mark.parametrize("cache", ["true", "false"])
@pytest.mark.parametrize("policy", POLICIES)
def test_answers_are_the_same(start, expected, policy, cache):
    settings = [f"kv.prefix_cache={cache}", *POLICIES[policy]]
    server = start(SMOLLM2, "--ctx", "512", *itertools.chain(*(("--set", setting) for setting in settings)))
    assert answers(server) == [expected, expected]
    assert (server.metric("sluice_prefix_cache_hits_total") > 0) == (cache == "true")
    assert server.stop()[0] == 0
