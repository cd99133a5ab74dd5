// What the routes share: the call's surroundings, and the two kinds of API functions. An API function reads
// JSON and writes JSON; nothing behind it sees any. All of them may run on a network thread or in the text
// pool.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "engine/served_model.h"
#include "server/api_keys.h"
#include "server/completion_request.h"
#include "server/generation.h"
#include "server/http.h"
#include "server/http_error.h"
#include "server/server.h"

namespace sluice {

class LiveFeed;
struct TrafficState;

class ResponseStore;

struct ApiCall {
  ServedModel& model;
  const ServerConfig& config;
  std::string model_name;  // id in the API
  std::string request_id;
  TimeNs deadline = 0;
  int64_t created = 0;         // Unix seconds
  Lane lane = Lane::standard;  // of X-Priority; the body's own word counts more
  uint32_t tenant = 0;         // GenerationPlan::tenant
  ArrivalTimes arrival = {};
  std::string_view route = {};
  TraceContext trace = {};
  std::shared_ptr<RequestLog> log = nullptr;
  ResponseStore* responses = nullptr;
  // Of this process's two pools, whose this is; and the model of the other one, null: there is none.
  Pool pool = Pool::stable;
  const ServedModel* other = nullptr;
  std::string other_name = {};
};

struct PreparedGeneration {
  GenerationPlan plan;
  std::unique_ptr<AnswerFormat> format;
};

using ApiFailure = std::optional<ApiError>;  // set: it failed

// A request for generated text, up to where the engine takes over.
using PrepareCall = ApiFailure (*)(std::string_view body, const ApiCall& call, PreparedGeneration& out);
ApiFailure prepare_completions(std::string_view body, const ApiCall& call, PreparedGeneration& out);
ApiFailure prepare_chat(std::string_view body, const ApiCall& call, PreparedGeneration& out);
ApiFailure prepare_messages(std::string_view body, const ApiCall& call, PreparedGeneration& out);
ApiFailure prepare_responses(std::string_view body, const ApiCall& call, PreparedGeneration& out);
ApiFailure prepare_embeddings(std::string_view body, const ApiCall& call, PreparedGeneration& out);

// A request that needs the model but not the engine.
using TextCall = HttpResponse (*)(std::string_view body, const ApiCall& call);
HttpResponse tokenize(std::string_view body, const ApiCall& call);
HttpResponse detokenize(std::string_view body, const ApiCall& call);
HttpResponse apply_template(std::string_view body, const ApiCall& call);
HttpResponse count_message_tokens(std::string_view body, const ApiCall& call);

// What is known of single requests (observe/request_log.h): GET /v1/requests and below.
// GET /v1/diagnosis. Any thread.
HttpResponse diagnosis_page(const HttpRequest& request, const LiveFeed& live, const RequestLog& log,
                            const TrafficState& traffic);
// `ledger`: of the engine that serves; null: there is none.
HttpResponse requests_page(const HttpRequest& request, const RequestLog& log, const ApiKeys& keys,
                           const StepLedger* ledger);

// Shared steps of the generation APIs.
// X-Sluice-Ignored, where there is something to say.
HttpHeaders headers_of(const GenerationOptions& options);
RequestBounds bounds_of(const ApiCall& call);
// 404 where the client names another model than the one that is served, with kCanaryNamed where it is the
// canary's. A canary may be called by the name of the model that it stands for.
inline constexpr std::string_view kCanaryNamed = "canary_named";
ApiFailure check_model(const GenerationOptions& options, const ApiCall& call);
// The id in the API, the file's or folder's name, a part of either (in any case), or the path.
bool names_model(std::string_view name, const ApiCall& call);
// 400 with code context_length_exceeded, or where the prompt has no token at all.
ApiFailure check_prompt(const std::vector<int32_t>& ids, const ApiCall& call, std::string_view field);
// The same for a text, before it is encoded, where its length alone says that it is too long.
ApiFailure check_text(size_t bytes, const ApiCall& call, std::string_view field);
// Ids of a text in which control tokens count, with one BOS where the vocabulary asks for one, also where the
// text itself begins with it.
std::vector<int32_t> encode_prompt(const Tokenizer& tokenizer, std::string_view text, bool add_special);
// Encodes and checks each input, into plan.prompts. `field`: the member that they came in.
ApiFailure encode_prompts(std::vector<PromptInput> inputs, const ApiCall& call, std::string_view field,
                          GenerationPlan& plan);
// Fills what the plan takes from call and options.
GenerationPlan plan_of(const ApiCall& call, GenerationOptions options, std::string id);

}  // namespace sluice
