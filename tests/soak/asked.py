"""What clients of the soak ask, and when two answers are the same. Everything asked has one right answer: greedy, or
sampled with a seed. A clean server gives it (learn); every other answer is held against it."""
import json
import random

TOOL = {"name": "pick", "description": "Picks one.", "parameters": {"type": "object", "properties": {"which": {"enum": ["left", "right", "neither"]}},
                                                                    "required": ["which"]}}
SCHEMA = {"type": "object", "properties": {"colour": {"enum": ["red", "green"]}, "n": {"type": "integer"}}, "required": ["colour", "n"],
          "additionalProperties": False}
OPENINGS = ["The river rises in the hills and ", "def f(n):\n  return ", "Once upon a time ", "1, 2, 3, 4, "]


class Asked:
    """One request: `path`, `body`, whether it can be `streamed`; `right`: its answer, once learned."""

    def __init__(self, path, body, streamed=True):
        self.path, self.body, self.streamed, self.right = path, body, streamed, None

    def is_generation(self):
        return self.path not in ("/tokenize", "/apply-template", "/v1/messages/count_tokens")

    def __str__(self):
        return f"{self.path} {json.dumps(self.body)[:300]}"


def text_of(rng):
    """A few openings, so that many requests begin alike, and an end of its own."""
    return rng.choice(OPENINGS) * rng.choice([1, 1, 2, 5]) + "".join(rng.choice("abcdefgh \n") for _ in range(rng.randrange(12)))


def sampling(rng):
    if rng.random() < 0.7:
        return {"temperature": 0}
    return {"temperature": round(rng.uniform(0.3, 1.5), 2), "seed": rng.randrange(1000), **rng.choice([{}, {"top_p": 0.8}, {"presence_penalty": 0.5}])}


def completion(rng):
    prompt = [rng.randrange(3, 250) for _ in range(rng.choice([1, 17, 60, 150]))] if rng.random() < 0.4 else text_of(rng)
    if rng.random() < 0.1:
        prompt = [prompt if isinstance(prompt, str) else "x", text_of(rng)]
    more = rng.choice([{}, {}, {"ignore_eos": True}, {"n": 3}, {"logprobs": 2}, {"stop": ["e", "\n\n"]}, {"echo": True},
                       {"guided_regex": "(ab|cd)+x"}, {"min_tokens": 4}])
    return Asked("/v1/completions", {"prompt": prompt, "max_tokens": rng.choice([1, 8, 24, 70]), **sampling(rng), **more})


def messages(rng):
    turns = [{"role": "user", "content": text_of(rng)}]
    if rng.random() < 0.3:
        turns += [{"role": "assistant", "content": "Yes."}, {"role": "user", "content": text_of(rng)}]
    return turns


def chat(rng):
    more = rng.choice([{}, {}, {"n": 2}, {"logprobs": True, "top_logprobs": 2}, {"response_format": {"type": "json_schema", "json_schema": {"name": "s", "schema": SCHEMA}}},
                       {"tools": [{"type": "function", "function": TOOL}], "tool_choice": "required"}, {"ignore_eos": True}])
    return Asked("/v1/chat/completions", {"messages": messages(rng), "max_tokens": rng.choice([1, 8, 40]), **sampling(rng), **more})


def anthropic(rng):
    tool = {"name": TOOL["name"], "input_schema": TOOL["parameters"]}
    more = rng.choice([{}, {}, {"tools": [tool], "tool_choice": {"type": "any"}}])
    return Asked("/v1/messages", {"model": "", "messages": messages(rng), "max_tokens": rng.choice([2, 30]), "temperature": 0, **more})


def responses(rng):
    more = rng.choice([{}, {}, {"tools": [{"type": "function", **TOOL}], "tool_choice": "required"}])
    return Asked("/v1/responses", {"input": text_of(rng), "max_output_tokens": rng.choice([2, 30]), "temperature": 0, **more})


def beside(rng):
    """Those that generate nothing, or no text."""
    return rng.choice([Asked("/v1/embeddings", {"input": [text_of(rng), text_of(rng)]}, False),
                       Asked("/tokenize", {"content": text_of(rng) * 3, "with_pieces": True}, False),
                       Asked("/apply-template", {"messages": messages(rng)}, False),
                       Asked("/v1/messages/count_tokens", {"model": "", "messages": messages(rng)}, False),
                       Asked("/tokenize", {"content": text_of(rng) * 4000}, False)])  # a body for the text pool


def catalogue(seed, count):
    rng = random.Random(seed)
    kinds = [completion] * 4 + [chat] * 3 + [anthropic, responses, beside]
    return [rng.choice(kinds)(rng) for _ in range(count)]


# -- Answers ---------------------------------------------------------------------------------------------------------

def without_names(value):
    """Ids are made up per answer, times are measured, and what was found cached is chance."""
    if isinstance(value, dict):
        return {k: without_names(v) for k, v in value.items() if k not in ("id", "call_id", "item_id", "timings", "created", "created_at", "usage")}
    if isinstance(value, list):
        return [without_names(v) for v in value]
    return value


def whole(path, answer):
    """Of a whole answer: all that has one right value."""
    return without_names(answer)


def pieces(path, answer):
    """Of a whole answer: what its stream tells as well, one entry per choice or block: (text, calls, end)."""
    if path == "/v1/completions":
        return [(c["text"], "", c["finish_reason"]) for c in answer["choices"]]
    if path == "/v1/chat/completions":
        return [(c["message"]["content"] or "", "".join(t["function"]["name"] + t["function"]["arguments"] for t in c["message"].get("tool_calls", [])),
                 c["finish_reason"]) for c in answer["choices"]]
    if path == "/v1/messages":
        blocks = answer["content"]
        text = "".join(b["text"] for b in blocks if b["type"] == "text")
        # A stream tells a call's input as it was written, a whole answer as what it means.
        return [(text, "".join(b["name"] for b in blocks if b["type"] == "tool_use"), answer["stop_reason"])]
    if path == "/v1/responses":
        items = answer["output"]
        text = "".join(p["text"] for i in items if i["type"] == "message" for p in i["content"])
        return [(text, "".join(i["name"] + i["arguments"] for i in items if i["type"] == "function_call"), answer["status"])]
    raise AssertionError(path)


class Streamed:
    """An event stream as far as it came: `parts` as pieces() has them, `error`: what it says went wrong, `over`: it
    said that this is all."""

    def __init__(self, path, choices, text):
        self.path, self.error, self.over = path, None, False
        self.parts = [["", "", None] for _ in range(choices)]
        for line in text.split("\n"):
            if line.startswith("data: "):
                self._take(line[6:].rstrip("\r"))

    def _take(self, data):
        if data == "[DONE]":
            self.over = True
            return
        event = json.loads(data)
        failed = event.get("response", {}).get("error")
        if event.get("error") or failed:
            self.error = event.get("error") or failed
        elif self.path == "/v1/messages":
            self._message(event)
        elif self.path == "/v1/responses":
            self._response(event)
        else:
            for choice in event["choices"]:
                self._choice(choice)

    def _choice(self, choice):
        part = self.parts[choice["index"]]
        assert part[2] is None, "a choice goes on behind its end"
        delta = choice.get("delta", {})
        part[0] += choice.get("text") or delta.get("content") or ""
        part[1] += "".join(t["function"].get("name", "") + t["function"].get("arguments", "") for t in delta.get("tool_calls", []))
        part[2] = choice["finish_reason"]

    def _message(self, event):
        part = self.parts[0]
        part[0] += event.get("delta", {}).get("text", "")
        if event["type"] == "content_block_start" and event["content_block"]["type"] == "tool_use":
            part[1] += event["content_block"]["name"]
        if event["type"] == "message_delta":
            part[2] = event["delta"]["stop_reason"]
        self.over = event["type"] == "message_stop"

    def _response(self, event):
        part = self.parts[0]
        if event["type"] == "response.output_text.delta":
            part[0] += event["delta"]
        elif event["type"] == "response.function_call_arguments.delta":
            part[1] += event["delta"]
        elif event["type"] == "response.output_item.added" and event["item"]["type"] == "function_call":
            part[1] += event["item"]["name"]
        elif event["type"] in ("response.completed", "response.incomplete"):
            part[2], self.over = event["response"]["status"], True

    def equals(self, right):
        return [tuple(p) for p in self.parts] == [tuple(p) for p in right]

    def begins(self, right):
        """What came is the beginning of what is right."""
        return all(r[0].startswith(p[0]) and r[1].startswith(p[1]) and p[2] in (None, r[2]) for p, r in zip(self.parts, right))
