// The OpenAPI 3.1 document of this server. It is written by hand, and true: tests/test_openapi.py sends what it
// allows and looks whether the answers are those that it lists, and compares it with the routes and with
// docs/api.md. What several APIs share stands once.
#include "server/openapi.h"

#include <initializer_list>

#include "server/openapi_schemas.h"

namespace sluice {

namespace {

std::string text(std::string_view a) { return '"' + std::string(a) + '"'; }
std::string ref(std::string_view kind, std::string_view name) {
  return R"({"$ref":"#/components/)" + std::string(kind) + "/" + std::string(name) + R"("})";
}
std::string schema(std::string_view name) { return ref("schemas", name); }
std::string object(std::string_view member, std::string_view type) {
  return R"({"type":"object","required":[)" + text(member) + R"(],"properties":{)" + text(member) + ":" +
         std::string(type) + "}}";
}
std::string content(std::string_view media_type, const std::string& schema) {
  return text(media_type) + R"(:{"schema":)" + schema + "}";
}

// Statuses of failures, in the shape of an API: "Error" or "MessagesError".
std::string failures(std::string_view shape, std::initializer_list<const char*> statuses) {
  std::string out;
  for (const char* status : statuses)
    out += "," + text(status) + ":" + ref("responses", std::string(shape) + status);
  return out;
}

std::string answer(std::string_view says, const std::string& contents, const std::string& failing = {}) {
  return R"("responses":{"200":{"description":)" + text(says) + R"(,"content":{)" + contents + "}}" + failing +
         "}";
}

std::string take(std::string_view summary, const std::string& request, const std::string& responses) {
  return R"("post":{"summary":)" + text(summary) + R"(,"requestBody":{"required":true,"content":{)" +
         content("application/json", request) + "}}," + responses + "}";
}

std::string get(std::string_view summary, const std::string& responses, const std::string& more = {}) {
  return R"("get":{"summary":)" + text(summary) + "," + more + responses + "}";
}

std::string path(std::string_view name, const std::string& operations) {
  return text(name) + ":{" + operations + "}";
}
std::string path_of_one(std::string_view name, std::string_view parameter, const std::string& operations) {
  return path(name, R"("parameters":[{"name":)" + text(parameter) +
                        R"(,"in":"path","required":true,"schema":{"type":"string","minLength":1}}],)" +
                        operations);
}
std::string number_parameter(std::string_view name, std::string_view most) {
  return R"({"name":)" + text(name) + R"(,"in":"query","schema":{"type":"integer","minimum":1,"maximum":)" +
         std::string(most) + "}}";
}
std::string text_parameter(std::string_view name) {
  return R"({"name":)" + text(name) + R"(,"in":"query","schema":{"type":"string"}})";
}

std::string json(const std::string& schema) { return content("application/json", schema); }
std::string events(const std::string& whole) {
  return json(whole) + "," + content("text/event-stream", R"({"type":"string"})");
}

std::string joined(std::initializer_list<std::string> parts) {
  std::string out;
  for (const std::string& part : parts) out += (out.empty() ? "" : ",") + part;
  return out;
}

std::string parameters(std::initializer_list<std::string> parts) {
  return R"("parameters":[)" + joined(parts) + "],";
}

std::string generation_paths() {
  const std::string failing =
      failures("Error", {"400", "401", "404", "408", "413", "415", "429", "431", "500", "503", "504"});
  const std::string messages_failing =
      failures("MessagesError", {"400", "401", "404", "408", "413", "415", "429", "431", "500", "504", "529"});
  const auto generation = [&](std::string_view summary, const char* request, const char* whole) {
    return take(summary, schema(request), answer("The answer.", events(schema(whole)), failing));
  };
  return joined(
      {path("/v1/chat/completions",
            generation("Chat, as OpenAI's API has it.", "ChatRequest", "ChatCompletion")),
       path("/v1/completions", generation("Completion of text or token ids, as OpenAI's API has it.",
                                          "CompletionRequest", "Completion")),
       path("/v1/responses",
            generation("Responses, as OpenAI's API has them.", "ResponsesRequest", "Response")),
       path_of_one(
           "/v1/responses/{id}", "id",
           get("A response that was stored.",
               answer("The response.", json(schema("Response")), failures("Error", {"401", "404"}))) +
               R"(,"delete":{"summary":"Forgets a stored response.",)" +
               answer("It is gone.", json(std::string(openapi::kDeleted)), failures("Error", {"401", "404"})) +
               "}"),
       path("/v1/messages", take("Messages, as Anthropic's API has them.", schema("MessagesRequest"),
                                 answer("The answer.", events(schema("Message")), messages_failing))),
       path("/v1/messages/count_tokens",
            take("How many tokens such a request's input has.", schema("CountTokensRequest"),
                 answer("The answer.", json(object("input_tokens", R"({"type":"integer"})")),
                        messages_failing))),
       path("/v1/embeddings", take("Vectors of texts, as OpenAI's API has them.", schema("EmbeddingsRequest"),
                                   answer("The answer.", json(schema("Embeddings")), failing)))});
}

std::string text_paths() {
  const std::string failing =
      failures("Error", {"400", "401", "408", "413", "415", "429", "431", "500", "503"});
  return joined(
      {path("/tokenize", take("Text to token ids.", std::string(openapi::kTokenizeRequest),
                              answer("The answer.", json(object("tokens", R"({"type":"array"})")), failing))),
       path("/detokenize",
            take("Token ids to text.",
                 object("tokens", R"({"type":"array","items":{"type":"integer","minimum":0}})"),
                 answer("The answer.", json(object("content", R"({"type":"string"})")), failing))),
       path("/apply-template",
            take("Messages to the prompt that the model sees.", schema("ChatRequest"),
                 answer("The answer.", json(object("prompt", R"({"type":"string"})")), failing)))});
}

std::string observing_paths() {
  const std::string any = json(R"({"type":"object"})");
  const std::string listed =
      R"({"type":"object","required":["object","data"],"properties":{"object":{"const":"list"},)"
      R"("data":{"type":"array","items":)" +
      schema("Model") + "}}}";
  const std::string status = json(object("status", R"({"type":"string"})"));
  const std::string free = R"("security":[],)";  // of keys
  const auto plain = [](std::string_view type) { return content(type, R"({"type":"string"})"); };
  const std::string file = R"("text/html":{},"text/css":{},"text/javascript":{},"image/svg+xml":{})";
  return joined(
      {path("/v1/models",
            get("The model that is served.", answer("The answer.", json(listed), failures("Error", {"401"})))),
       path_of_one("/v1/models/{id}", "id",
                   get("One model by its id.",
                       answer("The model.", json(schema("Model")), failures("Error", {"401", "404", "503"})))),
       path("/health", get("200 while the process lives.", answer("The answer.", status), free)),
       path("/live", get("The same.", answer("The answer.", status), free)),
       path("/ready", get("200 while a completion would be answered.",
                          answer("The answer.", status,
                                 R"(,"503":{"description":"Why not.","content":{)" + status + "}}"),
                          free)),
       path("/v1/requests",
            get("The last requests and where their time went.",
                answer("The requests.", any, failures("Error", {"400", "401"})),
                parameters({number_parameter("recent", "1000"), number_parameter("slowest", "1000")}))),
       path_of_one("/v1/requests/{id}/timeline", "id",
                   get("Where a request's time went.",
                       answer("The timeline.", any, failures("Error", {"401", "404"})))),
       path("/v1/requests/attribution",
            get("All of them summed.", answer("The sums.", any, failures("Error", {"400", "401"})),
                parameters({number_parameter("window_s", "86400"), text_parameter("request_id_prefix")}))),
       path("/v1/live",
            get("The server's numbers as server-sent events, one a second, without end.",
                answer("The stream.", plain("text/event-stream"), failures("Error", {"401", "503"})))),
       path("/v1/diagnosis", get("What costs throughput here, ranked, with evidence.",
                                 answer("The findings.", any, failures("Error", {"400", "401", "503"})),
                                 parameters({number_parameter("window_s", "120")}))),
       path("/", get("The page: chat, and the live numbers.", answer("The page.", plain("text/html")), free)),
       path_of_one("/page/{file}", "file",
                   get("The page's files.", answer("The file.", file, failures("Error", {"404"})), free)),
       path("/routes", get("The list of routes.", answer("The list.", plain("text/html")), free)),
       path("/metrics", get("Prometheus metrics.", answer("The answer.", plain("text/plain")), free)),
       path("/openapi.json", get("This document.", answer("The answer.", any), free))});
}

struct Failure {
  const char *status, *says;
};
constexpr Failure kFailures[] = {
    {"400", "A member is missing, wrong or not supported; it is named."},
    {"401", "No valid key."},
    {"404", "No such model, or nothing of that id."},
    {"408", "The request came too slowly."},
    {"413", "The body is too long."},
    {"415", "The body is compressed."},
    {"429", "The queue is full, or a limit was reached; Retry-After says when to come again."},
    {"431", "The head is too long."},
    {"500", "A fault of the server."},
    {"501", "An unknown transfer coding."},
    {"503", "The model is loading, or the server is shutting down."},
    {"504", "The request's deadline passed."},
    {"529", "The queue is full, the model is loading, or the server is shutting down."},
};

std::string failure_responses() {
  std::string out;
  for (const char* shape : {"Error", "MessagesError"}) {
    for (const Failure& f : kFailures) {
      out += (out.empty() ? "" : ",") + text(std::string(shape) + f.status) + R"(:{"description":)" +
             text(f.says) + R"(,"content":{)" + json(schema(shape)) + "}}";
    }
  }
  return out;
}

std::string document() {
  return R"({"openapi":"3.1.0","info":{"title":"Sluice","version":"1","description":"LLM inference server. Members that are not listed are ignored, and named in the header X-Sluice-Ignored; what would change the answer and is not supported is a 400 that names it. docs/api.md says more."},)"
         R"("security":[{},{"bearer":[]},{"key":[]}],"paths":{)" +
         generation_paths() + "," + text_paths() + "," + observing_paths() +
         R"(},"components":{"securitySchemes":{"bearer":{"type":"http","scheme":"bearer"},"key":{"type":"apiKey","in":"header","name":"x-api-key"}},)"
         R"("responses":{)" +
         failure_responses() + R"(},"schemas":{)" + openapi::schemas() + "}}}";
}

}  // namespace

std::string_view openapi_document() {
  static const std::string* made = new std::string(document());
  return *made;
}

}  // namespace sluice
