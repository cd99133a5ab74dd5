"""The server as the official Python SDK sees it."""
import openai
import pytest

from conftest import until


@pytest.fixture
def client(smollm2):
    with openai.OpenAI(base_url=smollm2.url + "/v1", api_key="none", max_retries=0, timeout=120) as client:
        yield client


@pytest.fixture
def model(client):
    return client.models.list().data[0].id


MESSAGES = [{"role": "user", "content": "Name three rivers."}]


def test_chat_streamed_equals_whole(client, model):
    whole = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0)
    chunks = list(client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=24, temperature=0, stream=True,
                                                 stream_options={"include_usage": True}))
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage == whole.usage
    assert whole.usage.completion_tokens <= 24
    assert [c.choices[0].finish_reason for c in chunks if c.choices][-1] == whole.choices[0].finish_reason


def test_completion_with_logprobs(client, model):
    done = client.completions.create(model=model, prompt="The capital of France is", max_tokens=4, temperature=0, logprobs=3)
    logprobs = done.choices[0].logprobs
    assert "".join(logprobs.tokens) == done.choices[0].text
    assert len(logprobs.token_logprobs) == 4 and all(p <= 0 for p in logprobs.token_logprobs)
    assert all(max(top.values()) == p for top, p in zip(logprobs.top_logprobs, logprobs.token_logprobs))


def test_chat_logprobs(client, model):
    done = client.chat.completions.create(model=model, messages=MESSAGES, max_tokens=3, temperature=0, logprobs=True, top_logprobs=2)
    content = done.choices[0].logprobs.content
    assert len(content) == 3 and all(len(c.top_logprobs) == 2 for c in content)
    assert all(c.top_logprobs[0].token == c.token for c in content)


def test_echo_gives_prompt_logprobs(client, model):
    done = client.completions.create(model=model, prompt="one two three", max_tokens=0, echo=True, logprobs=1)
    choice = done.choices[0]
    assert choice.text == "one two three"
    assert choice.logprobs.token_logprobs[0] is None and all(p < 0 for p in choice.logprobs.token_logprobs[1:])


def test_a_seed_repeats_and_n_differs(client, model):
    def ask(seed, n=1):
        done = client.completions.create(model=model, prompt="Once upon a time", max_tokens=16, temperature=1.2, seed=seed, n=n)
        return [c.text for c in sorted(done.choices, key=lambda c: c.index)]
    assert ask(5) == ask(5)
    assert len(set(ask(5, n=4))) > 1


def test_stop_strings_do_not_leak(client, model):
    prompt = "Count: one, two, three, four, five,"
    whole = client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0).choices[0].text
    assert len(whole) > 8
    stop = whole[5:8]  # spans tokens wherever they lie
    want = whole[:whole.index(stop)]
    once = client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0, stop=[stop]).choices[0]
    assert (once.text, once.finish_reason) == (want, "stop")
    chunks = client.completions.create(model=model, prompt=prompt, max_tokens=24, temperature=0, stop=[stop], stream=True)
    assert "".join(c.choices[0].text for c in chunks if c.choices) == want


def test_logit_bias_forces_a_token(client, model):
    done = client.completions.create(model=model, prompt="x", max_tokens=3, temperature=0, logit_bias={"73": 100})
    assert done.choices[0].text == "YYY"


def test_errors_are_the_sdks_own_classes(client, model):
    with pytest.raises(openai.NotFoundError) as unknown:
        client.completions.create(model="no-such-model", prompt="x")
    assert "no-such-model" in str(unknown.value)
    with pytest.raises(openai.BadRequestError) as wrong:
        client.completions.create(model=model, prompt="x", temperature=-1)
    assert wrong.value.param == "temperature"


def test_a_model_without_template_refuses_chat_only(gemma):
    with openai.OpenAI(base_url=gemma.url + "/v1", api_key="none", max_retries=0) as client:
        model = client.models.list().data[0].id
        with pytest.raises(openai.BadRequestError) as refused:
            client.chat.completions.create(model=model, messages=MESSAGES)
        assert "template" in str(refused.value)
        assert client.completions.create(model=model, prompt="Paris is", max_tokens=2).choices[0].finish_reason


def test_timeouts_and_cancelled_streams_free_the_server(client, model, smollm2):
    with pytest.raises(openai.APITimeoutError):
        client.with_options(timeout=0.3).completions.create(model=model, prompt="x", max_tokens=4000, extra_body={"ignore_eos": True})
    with client.completions.create(model=model, prompt="x", max_tokens=4000, stream=True, extra_body={"ignore_eos": True}) as stream:
        next(iter(stream))
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)
