"""docs/api.md says of every member of every API whether it is supported, ignored or refused. Each row is sent, on each API it speaks of."""
import http.client
import json
import re

import pytest

from conftest import ROOT

MESSAGES = [{"role": "user", "content": "x"}]
BODIES = {
    "/v1/completions": {"prompt": "x", "max_tokens": 1},
    "/v1/chat/completions": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages": {"messages": MESSAGES, "max_tokens": 1},
    "/v1/messages/count_tokens": {"messages": MESSAGES},
    "/v1/responses": {"input": "x", "max_output_tokens": 1},
    "/v1/embeddings": {"input": "x"},
}
SECTIONS = {
    "All that generate text": ["/v1/completions", "/v1/chat/completions", "/v1/messages", "/v1/messages/count_tokens", "/v1/responses"],
    "OpenAI's completions and chat": ["/v1/completions", "/v1/chat/completions"],
    "`/v1/completions`": ["/v1/completions"],
    "`/v1/chat/completions`": ["/v1/chat/completions"],
    "Anthropic's Messages": ["/v1/messages", "/v1/messages/count_tokens"],
    "OpenAI's Responses": ["/v1/responses"],
    "Embeddings": ["/v1/embeddings"],
}
SCHEMAS = {"/v1/completions": "CompletionRequest", "/v1/chat/completions": "ChatRequest", "/v1/messages": "MessagesRequest",
           "/v1/messages/count_tokens": "CountTokensRequest", "/v1/responses": "ResponsesRequest", "/v1/embeddings": "EmbeddingsRequest"}

FLAT = [{"type": "function", "name": "f", "parameters": {"type": "object"}}]
NESTED = [{"type": "function", "function": {"name": "f"}}]
CUSTOM = [{"name": "f", "input_schema": {"type": "object"}}]
SCHEMA = {"type": "object"}
# A value of each member that asks for something; (value, other members) where it needs company. By API where they differ.
SAMPLES = {
    "model": "", "max_tokens": 1, "min_tokens": 1, "ignore_eos": True, "temperature": 0.5, "top_p": 0.5, "top_k": 5, "min_p": 0.1,
    "presence_penalty": 0.1, "frequency_penalty": 0.1, "repetition_penalty": 1.1, "logit_bias": {"5": 1}, "seed": 1, "stop": ["zz"],
    "stop_token_ids": [5], "include_stop_str_in_output": True, "skip_special_tokens": False, "stream": True, "priority": "batch",
    "cache_salt": "s", "response_format": {"type": "json_object"}, "json_schema": SCHEMA, "grammar": 'root ::= "a"', "guided_json": SCHEMA,
    "guided_regex": "a", "guided_choice": ["a"], "guided_grammar": 'root ::= "a"', "structured_outputs": {"regex": "a"},
    "service_tier": "auto", "safety_identifier": "s", "prompt_cache_key": "k", "cache_prompt": True, "user": "u", "metadata": {"a": "b"},
    "store": True, "audio": {}, "modalities": ["audio"], "prediction": {}, "web_search_options": {}, "reasoning_effort": "low",
    "verbosity": "low", "functions": [{}], "function_call": "f", "documents": [{}], "suffix": "s", "lora": "l", "adapter": "a",
    "chat_template": "t", "use_beam_search": True, "length_penalty": 2, "early_stopping": True, "bad_words": ["a"], "allowed_token_ids": [1],
    "logits_processors": ["p"], "prompt_logprobs": 1, "truncate_prompt_tokens": 1, "spaces_between_special_tokens": False,
    "detokenize": False, "guided_whitespace_pattern": " ", "stop_regex": "a", "n_predict": 1, "repeat_penalty": 2, "typical_p": 0.5,
    "top_a": 0.5, "tfs_z": 0.5, "mirostat": 1, "dynatemp_range": 1, "dry_multiplier": 1, "xtc_probability": 0.5, "samplers": ["top_k"],
    "n_probs": 1, "grammar_lazy": True, "n": 2, "stream_options": ({"include_usage": True}, {"stream": True}), "return_token_ids": True,
    "return_tokens_as_token_ids": True, "thinking": {"type": "disabled"}, "prompt": "y", "echo": True, "best_of": 1,
    "add_special_tokens": False, "parallel_tool_calls": False, "messages": MESSAGES, "max_completion_tokens": 1,
    "top_logprobs": (1, {"logprobs": True}), "add_generation_prompt": True, "continue_final_message": False, "chat_template_kwargs": {"a": 1},
    "system": "s", "stop_sequences": ["zz"], "output_config": {"format": {"type": "json_schema", "schema": SCHEMA}}, "container": "c",
    "mcp_servers": [{}], "context_management": {}, "output_format": {}, "input": "y", "instructions": "i", "max_output_tokens": 1,
    "previous_response_id": "resp_none", "text": {"format": {"type": "json_object"}}, "reasoning": {"effort": "low"}, "include": ["a"],
    "max_tool_calls": 1, "background": True, "truncation": "auto", "conversation": "c", "encoding_format": "base64", "dimensions": 8,
    "logprobs": {"/v1/completions": 1, "/v1/chat/completions": True},
    "tools": {"/v1/completions": NESTED, "/v1/chat/completions": NESTED, "/v1/messages": CUSTOM, "/v1/messages/count_tokens": CUSTOM,
              "/v1/responses": FLAT},
    "tool_choice": {"/v1/completions": "required", "/v1/chat/completions": ("required", {"tools": NESTED}),
                    "/v1/messages": ({"type": "any"}, {"tools": CUSTOM}), "/v1/messages/count_tokens": ({"type": "any"}, {"tools": CUSTOM}),
                    "/v1/responses": ("required", {"tools": FLAT})},
}


def table():
    """(path, member, status) of all rows."""
    rows, paths = [], None
    for line in (ROOT / "docs" / "api.md").read_text().splitlines():
        if line.startswith("#"):
            paths = SECTIONS.get(line.lstrip("# "))
        cells = [cell.strip() for cell in line.split("|")]
        if paths and len(cells) > 3 and cells[2] in ("supported", "ignored", "refused"):
            rows += [(path, member, cells[2]) for path in paths for member in re.findall(r"`([^`]+)`", cells[1])]
    return rows


def send(server, path, body):
    """Status, the names ignored, the text of the answer."""
    connection = http.client.HTTPConnection(server.host, server.port, timeout=120)
    try:
        connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json"})
        answer = connection.getresponse()
        return answer.status, (answer.getheader("X-Sluice-Ignored") or "").split(", "), answer.read().decode()
    finally:
        connection.close()


@pytest.mark.parametrize("path", BODIES)
def test_every_row_is_true(smollm2, path):
    rows = {member: status for where, member, status in table() if where == path}  # what an API says itself counts
    assert rows
    for member, said in rows.items():
        sample = SAMPLES[member]
        if isinstance(sample, dict) and path in sample:
            sample = sample[path]
        value, company = sample if isinstance(sample, tuple) else (sample, {})
        company = company if said == "supported" else {}
        status, ignored, text = send(smollm2, path, {**BODIES[path], **company, member: value})
        if said == "refused":
            assert status == 400 and f"'{member}" in json.loads(text)["error"]["message"], (path, member, status, text)
        elif member == "previous_response_id":
            assert status == 404, text
        else:
            assert status == 200, (path, member, text)
            assert (member in ignored) == (said == "ignored"), (path, member, ignored)


def test_the_table_and_the_openapi_document_name_the_same_members(smollm2):
    schemas = smollm2.get("/openapi.json")[1]["components"]["schemas"]
    for path, schema in SCHEMAS.items():
        names = lambda *kinds: {member for where, member, said in table() if where == path and said in kinds}
        documented = set(schemas[schema]["properties"])
        assert documented <= names("supported", "ignored", "refused"), path
        missing = names("supported") - documented
        assert not missing, (path, missing)
