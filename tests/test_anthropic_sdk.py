"""The server as Anthropic's official Python SDK sees it."""
import anthropic
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
