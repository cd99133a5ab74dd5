"""The server as Anthropic's official Python SDK sees it."""
from typing import Literal

import anthropic
import pydantic
import pytest

from conftest import until

MESSAGES = [{"role": "user", "content": "Name three rivers."}]


@pytest.fixture
def client(smollm2):
    with anthropic.Anthropic(base_url=smollm2.url, api_key="none", max_retries=0, timeout=120) as client:
        yield client


GREEDY = {"temperature": 0}  # the SDK itself no longer names it


def create(client, **members):
    return client.messages.create(**{"model": "SmolLM2", "max_tokens": 24, "messages": MESSAGES, "extra_body": GREEDY, **members})


def test_streamed_equals_whole(client):
    whole = create(client)
    assert whole.type == "message" and whole.role == "assistant" and whole.content[0].text
    with client.messages.stream(model="SmolLM2", max_tokens=24, messages=MESSAGES, extra_body=GREEDY) as stream:
        text = "".join(stream.text_stream)
        final = stream.get_final_message()
    assert text == final.content[0].text == whole.content[0].text
    assert (final.stop_reason, final.usage.output_tokens) == (whole.stop_reason, whole.usage.output_tokens)
    total = lambda u: u.input_tokens + u.cache_read_input_tokens + u.cache_creation_input_tokens
    assert total(final.usage) == total(whole.usage)


def test_events_come_in_the_published_order(client):
    kinds = [event.type for event in create(client, stream=True) if event.type != "ping"]
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta"}


def test_system_as_text_and_as_blocks(client):
    as_text = create(client, system="You count.")
    as_blocks = create(client, system=[{"type": "text", "text": "You count.", "cache_control": {"type": "ephemeral"}}])
    assert as_text.content == as_blocks.content and as_text.content != create(client).content


def test_a_prefilled_answer_goes_on(client):
    counted = create(client, messages=[{"role": "user", "content": "Count."}, {"role": "assistant", "content": "1, 2, 3, 4,"}], stop_sequences=["7"])
    assert counted.content[0].text.startswith(" 5") and (counted.stop_reason, counted.stop_sequence) == ("stop_sequence", "7")


def test_tokens_are_counted_without_generating(client):
    counted = client.messages.count_tokens(model="SmolLM2", messages=MESSAGES, system="Be brief.")
    usage = create(client, system="Be brief.", max_tokens=1).usage
    assert counted.input_tokens == usage.input_tokens + usage.cache_read_input_tokens


def test_errors_are_the_sdks_own_classes(client):
    with pytest.raises(anthropic.BadRequestError) as wrong:
        create(client, max_tokens=-1)
    assert wrong.value.body["error"]["type"] == "invalid_request_error" and wrong.value.request_id
    with pytest.raises(anthropic.NotFoundError):
        create(client, model="no-such-model")
    with pytest.raises(anthropic.BadRequestError) as image:
        create(client, messages=[{"role": "user", "content": [{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "%%%"}}]}])
    assert "messages[0].content[0].type" in str(image.value)


def test_an_answer_tells_its_request_id(client):
    assert create(client, max_tokens=1)._request_id.startswith("req-")


def test_a_timeout_and_a_cancelled_stream_free_the_server(client, smollm2):
    with pytest.raises(anthropic.APITimeoutError):
        client.with_options(timeout=0.3).messages.create(model="SmolLM2", max_tokens=4000, messages=MESSAGES, extra_body={"ignore_eos": True})
    with client.messages.stream(model="SmolLM2", max_tokens=4000, messages=MESSAGES, extra_body={"ignore_eos": True}) as stream:
        next(stream.text_stream)
    assert until(lambda: smollm2.metric("sluice_requests_running") == 0)


CLOCK = {"name": "get_time", "description": "The time in a zone", "input_schema": {
    "type": "object", "properties": {"zone": {"enum": ["UTC", "CET"]}}, "required": ["zone"], "additionalProperties": False}}
WEATHER = {"name": "get_weather", "input_schema": {
    "type": "object", "properties": {"city": {"type": "string", "maxLength": 20}}, "required": ["city"], "additionalProperties": False}}
ANY = {"type": "any", "disable_parallel_tool_use": True}


def test_a_forced_tool_use_streamed_equals_whole(client):
    whole = create(client, tools=[CLOCK, WEATHER], tool_choice=ANY, max_tokens=120)
    (use,) = whole.content
    assert (whole.stop_reason, use.type) == ("tool_use", "tool_use") and use.id.startswith("toolu_")
    if use.name == "get_time":
        assert use.input["zone"] in ("UTC", "CET")
    else:
        assert use.name == "get_weather" and set(use.input) == {"city"}
    with client.messages.stream(model="SmolLM2", max_tokens=120, messages=MESSAGES, tools=[CLOCK, WEATHER], tool_choice=ANY, extra_body=GREEDY) as stream:
        kinds = [event.type for event in stream if event.type != "ping"]
        final = stream.get_final_message()
    assert [(b.name, b.input) for b in final.content] == [(use.name, use.input)] and final.stop_reason == "tool_use"
    assert final.usage.output_tokens == whole.usage.output_tokens
    assert kinds[:2] == ["message_start", "content_block_start"] and kinds[-3:] == ["content_block_stop", "message_delta", "message_stop"]
    assert set(kinds[2:-3]) == {"content_block_delta", "input_json"}  # the second is the SDK's own


def test_a_named_tool_and_its_result_in_the_history(client):
    named = {"type": "tool", "name": "get_time"}
    asked = create(client, tools=[CLOCK, WEATHER], tool_choice=named, max_tokens=60)
    (use,) = asked.content
    assert use.name == "get_time"
    history = MESSAGES + [{"role": "assistant", "content": asked.content}, {"role": "user", "content": [
        {"type": "tool_result", "tool_use_id": use.id, "content": "12:00", "is_error": False}]}]
    counted = client.messages.count_tokens(model="SmolLM2", messages=history, tools=[CLOCK, WEATHER])
    done = create(client, messages=history, tools=[CLOCK, WEATHER])
    assert done.usage.input_tokens + done.usage.cache_read_input_tokens == counted.input_tokens
    as_blocks = [*history[:-1], {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use.id, "content": [{"type": "text", "text": "12:00"}]}]}]
    assert create(client, messages=as_blocks, tools=[CLOCK, WEATHER]).content == done.content


def test_tools_that_may_not_be_used_are_not_shown(client):
    plain, none = create(client), create(client, tools=[CLOCK], tool_choice={"type": "none"})
    assert none.content == plain.content and none.usage.output_tokens == plain.usage.output_tokens


def test_mistakes_in_tools_are_named(client):
    for members, field in [({"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
                           ({"tools": [CLOCK], "tool_choice": {"type": "tool", "name": "other"}}, "tool_choice.name")]:
        with pytest.raises(anthropic.BadRequestError) as refused:
            create(client, **members)
        assert field in str(refused.value)


def test_a_parsed_pydantic_model(client):
    class City(pydantic.BaseModel):
        name: str
        size: Literal["small", "large"]

    done = client.messages.parse(model="SmolLM2", messages=MESSAGES, max_tokens=150, output_format=City, extra_body=GREEDY)
    if done.stop_reason == "end_turn":
        assert isinstance(done.parsed_output, City)
    else:
        assert done.stop_reason == "max_tokens"
