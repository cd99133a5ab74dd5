// POST /v1/embeddings, as OpenAI's API has it: each input's pooled last hidden state, of length 1.
#include <bit>
#include <cmath>

#include "base/log.h"
#include "server/answer_json.h"
#include "server/api.h"
#include "server/completion_request.h"

namespace sluice {

namespace {

struct EmbeddingsRequest {
  GenerationOptions options;
  std::vector<PromptInput> inputs;
  bool base64 = false;
  int dimensions = 0;  // 0: as many as the model has
};

using Bounds = RequestBounds;

// What says how text is generated says nothing about a vector.
Status check_names(JsonView root) {
  Status status;
  root.each_member([&](std::string_view name, JsonView value) {
    const bool means_something = name == "model" || name == "priority" || name == "cache_salt";
    if (is_shared_member(name) && !means_something && !value.is_null())
      status =
          Error{ErrorCode::kUnsupported, "has no meaning for embeddings; leave it out.", std::string(name)};
    return status.ok();
  });
  return status;
}

Status read_encoding(JsonView value, EmbeddingsRequest& r, const Bounds&) {
  if (value.string() != "float" && value.string() != "base64")
    return member_error("must be \"float\" or \"base64\".");
  r.base64 = value.string() == "base64";
  return {};
}

constexpr Member<EmbeddingsRequest> kMembers[] = {
    {"input", [](JsonView v, EmbeddingsRequest& r, const Bounds& b) { return read_prompts(v, r.inputs, b); }},
    {"encoding_format", read_encoding},
    {"dimensions",
     [](JsonView v, EmbeddingsRequest& r, const Bounds&) { return read_integer(v, 1, 1 << 16, r.dimensions); }},
};

std::string base64_of(const std::vector<float>& values) {
  static_assert(std::endian::native == std::endian::little);
  static constexpr char kDigits[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
  const std::string_view bytes(reinterpret_cast<const char*>(values.data()), values.size() * sizeof(float));
  std::string out;
  out.reserve((bytes.size() + 2) / 3 * 4);
  for (size_t i = 0; i < bytes.size(); i += 3) {
    const auto byte = [&](size_t k) {
      return i + k < bytes.size() ? uint32_t(static_cast<unsigned char>(bytes[i + k])) : 0u;
    };
    const uint32_t three = byte(0) << 16 | byte(1) << 8 | byte(2);
    for (size_t k = 0; k < 4; ++k) out += i + k <= bytes.size() ? kDigits[three >> (18 - 6 * k) & 63] : '=';
  }
  return out;
}

// The first `dimensions` of them, scaled to length 1; zeros stay zeros.
std::vector<float> unit_length(const std::vector<float>& pooled, size_t dimensions) {
  std::vector<float> out(pooled.begin(), pooled.begin() + std::ptrdiff_t(std::min(dimensions, pooled.size())));
  double square = 0;
  for (const float x : out) square += double(x) * x;
  const double scale = square > 0 ? 1 / std::sqrt(square) : 0;
  for (float& x : out) x = float(x * scale);
  return out;
}

class EmbeddingsFormat final : public AnswerFormat {
 public:
  EmbeddingsFormat(const GenerationPlan& plan, bool base64, size_t dimensions)
      : model_(plan.model), base64_(base64), dimensions_(dimensions) {}

  void piece(std::string&, const ChoiceView&, const ChoiceDelta&, const Timings&) override {}  // never streamed
  void usage(std::string&, const Usage&) override {}

  void begin_whole(std::string& out) override { out += R"({"object":"list","data":[)"; }

  void whole_choice(std::string& out, const ChoiceView& view, const ChoiceDelta&) override {
    if (view.choice.index() > 0) out += ',';
    const std::vector<float> vector = unit_length(view.stream.pooled(), dimensions_);
    JsonWriter w(out);
    w.begin_object()
        .key("object")
        .string("embedding")
        .key("index")
        .integer(view.choice.index())
        .key("embedding");
    if (base64_) {
      w.string(base64_of(vector));
    } else {
      w.begin_array();
      for (const float x : vector) w.number(x);
      w.end_array();
    }
    w.end_object();
  }

  void end_whole(std::string& out, const Usage& usage, const Timings&) override {
    out += "],";
    JsonWriter w(out);
    w.key("model").string(model_).key("usage").begin_object();
    w.key("prompt_tokens").integer(usage.prompt_tokens).key("total_tokens").integer(usage.prompt_tokens);
    w.end_object();
    out += '}';
  }

 private:
  const std::string model_;
  const bool base64_;
  const size_t dimensions_;
};

}  // namespace

ApiFailure prepare_embeddings(std::string_view body, const ApiCall& call, PreparedGeneration& out) {
  auto document = JsonDocument::parse(body);
  if (!document.ok()) return api_error(document.error());
  EmbeddingsRequest request;
  if (Status status = check_names(document->root()); !status.ok()) return api_error(status.error());
  if (Status status = read_members<EmbeddingsRequest>(document->root(), kMembers, request, bounds_of(call));
      !status.ok())
    return api_error(status.error());
  if (request.inputs.empty()) return api_error(member_error("is required.", "input"));
  if (ApiFailure failure = check_model(request.options, call)) return failure;
  const int hidden = call.model.engine().info().spec.hidden;
  if (request.dimensions > hidden)
    return api_error(
        member_error(fmt::format("must be at most {}, what this model has.", hidden), "dimensions"));
  GenerationPlan plan = plan_of(call, std::move(request.options), {});
  plan.options.max_tokens = 0;
  plan.pooling = call.config.embedding_pooling == "last" ? Pooling::last : Pooling::mean;
  if (ApiFailure failure = encode_prompts(std::move(request.inputs), call, "input", plan)) return failure;
  const int dimensions = request.dimensions > 0 ? request.dimensions : hidden;
  out.format = std::make_unique<EmbeddingsFormat>(plan, request.base64, size_t(dimensions));
  out.plan = std::move(plan);
  return std::nullopt;
}

}  // namespace sluice
