"""The server as the official Python SDK sees it."""
import json
from typing import Literal

import openai
import pydantic
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
    counts = {"prompt_tokens", "completion_tokens", "total_tokens"}  # the second finds more of the prompt in the cache
    assert chunks[-1].usage.model_dump(include=counts) == whole.usage.model_dump(include=counts)
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


WEATHER = {"type": "function", "function": {
    "name": "get_weather", "description": "Weather of a city", "parameters": {
        "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}, "unit": {"enum": ["C", "F"]}},
        "required": ["city", "unit"], "additionalProperties": False}}}
CLOCK = {"type": "function", "function": {"name": "get_time", "parameters": {"type": "object", "properties": {
    "zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}}}


def test_a_forced_tool_call_has_valid_arguments(client, model):
    done = client.chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, CLOCK], tool_choice="required", max_tokens=120,
                                          parallel_tool_calls=False, seed=1)
    choice = done.choices[0]
    assert choice.finish_reason == "tool_calls"
    assert choice.message.content is None
    (call,) = choice.message.tool_calls
    arguments = json.loads(call.function.arguments)
    assert call.type == "function" and call.id
    if call.function.name == "get_weather":
        assert set(arguments) == {"city", "unit"} and arguments["unit"] in ("C", "F")
    else:
        assert call.function.name == "get_time" and arguments["zone"] in ("UTC", "CET")


def test_a_named_tool_streams_its_name_first(client, model):
    chunks = list(client.chat.completions.create(model=model, messages=MESSAGES, tools=[WEATHER, CLOCK], stream=True, max_tokens=120, seed=2,
                                                 tool_choice={"type": "function", "function": {"name": "get_time"}}))
    deltas = [c.choices[0].delta for c in chunks if c.choices]
    calls = [call for d in deltas for call in d.tool_calls or []]
    assert calls[0].function.name == "get_time" and calls[0].id
    assert all(c.id is None and c.function.name is None for c in calls[1:])
    assert json.loads("".join(c.function.arguments or "" for c in calls))["zone"] in ("UTC", "CET")
    assert not "".join(d.content or "" for d in deltas)
    assert chunks[-1].choices[0].finish_reason == "tool_calls"


def test_a_tool_loop_goes_on_with_the_result(client, model):
    call = client.chat.completions.create(model=model, messages=MESSAGES, tools=[CLOCK], tool_choice="required", max_tokens=60).choices[0].message
    history = MESSAGES + [call.model_dump(exclude_none=True)] + [
        {"role": "tool", "tool_call_id": c.id, "content": "12:00"} for c in call.tool_calls]
    done = client.chat.completions.create(model=model, messages=history, tools=[CLOCK], max_tokens=16)
    assert done.choices[0].finish_reason in ("stop", "length", "tool_calls")


def test_a_parsed_pydantic_model(client, model):
    class Person(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        age: int = pydantic.Field(ge=0, le=120)
        pet: Literal["cat", "dog"] | None

    done = client.chat.completions.parse(model=model, messages=[{"role": "user", "content": "Make up a person."}], response_format=Person,
                                         max_tokens=150, temperature=0)
    assert done.choices[0].finish_reason == "stop"
    assert isinstance(done.choices[0].message.parsed, Person)


def test_a_keyword_that_cannot_be_enforced_is_named(client, model):
    schema = {"type": "object", "properties": {"a": {"type": "array", "uniqueItems": True}}}
    with pytest.raises(openai.BadRequestError) as refused:
        client.chat.completions.create(model=model, messages=MESSAGES,
                                       response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}})
    assert refused.value.param == "response_format.json_schema.schema.properties.a.uniqueItems"


def test_responses_streamed_and_whole(client, model):
    whole = client.responses.create(model=model, input="Name three rivers.", instructions="Be brief.", max_output_tokens=16, temperature=0)
    assert whole.output_text and whole.usage.output_tokens <= 16 and whole.store is False
    events = list(client.responses.create(model=model, input="Name three rivers.", instructions="Be brief.", max_output_tokens=16, temperature=0, stream=True))
    kinds = [e.type for e in events]
    assert kinds[:4] == ["response.created", "response.in_progress", "response.output_item.added", "response.content_part.added"]
    assert kinds[-4:-1] == ["response.output_text.done", "response.content_part.done", "response.output_item.done"]
    assert kinds[-1] == f"response.{whole.status}" and [e.sequence_number for e in events] == list(range(len(events)))
    assert "".join(e.delta for e in events if e.type == "response.output_text.delta") == events[-1].response.output_text == whole.output_text


def test_stored_responses_go_on_and_are_forgotten(client, model):
    first = client.responses.create(model=model, input="My name is Ada.", max_output_tokens=8, temperature=0, store=True)
    assert client.responses.retrieve(first.id).output_text == first.output_text
    second = client.responses.create(model=model, input="Who am I?", previous_response_id=first.id, max_output_tokens=8, temperature=0)
    inline = client.responses.create(model=model, max_output_tokens=8, temperature=0, input=[
        {"role": "user", "content": "My name is Ada."}, *[item.model_dump() for item in first.output], {"role": "user", "content": "Who am I?"}])
    assert second.output_text == inline.output_text and second.usage.input_tokens == inline.usage.input_tokens
    client.responses.delete(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.retrieve(first.id)
    with pytest.raises(openai.NotFoundError):
        client.responses.create(model=model, input="Who am I?", previous_response_id=first.id)


FLAT = [{"type": "function", **tool["function"]} for tool in (WEATHER, CLOCK)]


def test_responses_call_functions(client, model):
    ask = dict(model=model, input="What time is it?", tools=FLAT, tool_choice={"type": "function", "name": "get_time"}, max_output_tokens=60, temperature=0)
    whole = client.responses.create(**ask)
    (call,) = whole.output
    assert (call.type, call.name, call.status, whole.status) == ("function_call", "get_time", "completed", "completed")
    assert json.loads(call.arguments)["zone"] in ("UTC", "CET")
    with client.responses.stream(**ask) as stream:
        events = list(stream)
        final = stream.get_final_response()
    assert final.output[0].arguments == call.arguments
    kinds = [e.type for e in events]
    assert kinds[:3] == ["response.created", "response.in_progress", "response.output_item.added"]
    assert kinds[-3:] == ["response.function_call_arguments.done", "response.output_item.done", "response.completed"]
    assert "".join(e.delta for e in events if e.type == "response.function_call_arguments.delta") == call.arguments


def test_a_responses_loop_inline_and_stored(client, model):
    ask = dict(model=model, tools=FLAT, max_output_tokens=8, temperature=0)
    first = client.responses.create(**{**ask, "max_output_tokens": 60}, input="What time is it?", tool_choice="required", parallel_tool_calls=False, store=True)
    (call,) = first.output
    result = {"type": "function_call_output", "call_id": call.call_id, "output": "12:00"}
    stored = client.responses.create(**ask, input=[result], previous_response_id=first.id)
    inline = client.responses.create(**ask, input=[{"role": "user", "content": "What time is it?"}, call.model_dump(), result])
    assert stored.output_text == inline.output_text and stored.usage.input_tokens == inline.usage.input_tokens


def test_responses_are_parsed_by_a_pydantic_model(client, model):
    class City(pydantic.BaseModel):
        name: str = pydantic.Field(max_length=20)
        size: Literal["small", "large"]

    done = client.responses.parse(model=model, input="Make up a city.", text_format=City, max_output_tokens=120, temperature=0)
    assert done.status == "completed" and isinstance(done.output_parsed, City)


def test_embeddings_tell_texts_apart(client, model):
    texts = ["The cat sat on the mat.", "A cat was sitting on a mat.", "SELECT name FROM users WHERE id = 7;"]
    vectors = [e.embedding for e in client.embeddings.create(model=model, input=texts).data]  # the SDK asks for base64
    as_floats = [e.embedding for e in client.embeddings.create(model=model, input=texts, encoding_format="float").data]
    dot = lambda a, b: sum(x * y for x, y in zip(a, b))
    assert all(abs(dot(v, v) - 1) < 1e-4 for v in vectors) and all(abs(dot(a, b) - 1) < 1e-4 for a, b in zip(vectors, as_floats))
    assert dot(vectors[0], vectors[1]) > dot(vectors[0], vectors[2])
    alone = client.embeddings.create(model=model, input=texts[0], dimensions=16)
    assert len(alone.data[0].embedding) == 16 and alone.usage.total_tokens > 5
