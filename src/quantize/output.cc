#include "quantize/output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <filesystem>

#include "base/mapped_file.h"
#include "model/formats/json_text.h"
#include "model/formats/rows.h"
#include "model/formats/safetensors.h"
#include "model/formats/whole_file.h"
#include "model/slots.h"
#include "quantize/gguf_output.h"
#include "tensor/half.h"

namespace sluice::quantize {
namespace {

namespace fs = std::filesystem;

constexpr const char* kResiduals = "residuals.unfinished";
constexpr const char* kIdentity = "run.txt";
// Everything of a folder that says how text becomes tokens and back, and how to sample.
constexpr const char* kSideFiles[] = {"tokenizer.json",     "tokenizer_config.json",
                                      "tokenizer.model",    "special_tokens_map.json",
                                      "added_tokens.json",  "vocab.json",
                                      "merges.txt",         "chat_template.jinja",
                                      "chat_template.json", "generation_config.json"};

Error io(const std::string& path, const std::error_code& e) {
  return {ErrorCode::kIo, fmt::format("{}: {}", path, e.message())};
}

bool exists(const std::string& path) {
  std::error_code e;
  return fs::exists(path, e);
}

OutputTensor half_tensor(const std::string& name, const Matrix& m) {
  OutputTensor out{name, "F16", {m.rows, m.cols}, std::vector<std::byte>(m.values.size() * 2)};
  for (size_t i = 0; i < m.values.size(); i++) {
    const uint16_t half = f32_to_f16(m.values[i]);
    std::memcpy(out.data.data() + 2 * i, &half, 2);
  }
  return out;
}

// Of two texts that differ, the first line of which that is so.
std::string first_difference(std::string_view old, std::string_view now) {
  const auto line = [](std::string_view& text) {
    const std::string_view out = text.substr(0, text.find('\n'));
    text.remove_prefix(std::min(text.size(), out.size() + 1));
    return out;
  };
  while (!old.empty() || !now.empty())
    if (const std::string_view was = line(old), is = line(now); was != is)
      return fmt::format("'{}' there, '{}' here", was, is);
  return {};
}

std::string without_weight(const std::string& name) { return name.substr(0, name.rfind('.')); }

}  // namespace

Output::Output(const Checkpoint& checkpoint, const Plan& plan, std::string out)
    : checkpoint_(checkpoint),
      plan_(plan),
      family_(*find_family(checkpoint.spec().architecture)),
      out_(std::move(out)),
      partial_(out_ + ".partial") {}

Result<std::unique_ptr<Output>> Output::open(const Checkpoint& checkpoint, const Plan& plan,
                                             const std::string& path, const std::string& identity) {
  std::string out = path;
  while (out.size() > 1 && out.ends_with('/')) out.pop_back();
  if (out.empty() || exists(out))
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: exists already; remove it or choose another name", out), "output"};
  std::unique_ptr<Output> output(new Output(checkpoint, plan, out));
  if (Result<std::string> config = output->config(""); !config) return std::move(config).error();
  std::error_code e;
  fs::create_directories(output->partial_, e);
  if (e) return Error{ErrorCode::kIo, io(output->partial_, e).message, "output"};
  if (Status s = output->lock(); !s) return std::move(s).error();
  const std::string stamp = output->partial_ + "/" + kIdentity;
  const Result<MappedFile> old = MappedFile::open(stamp);
  // A run that could not even write its settings left nothing.
  if (!old && fs::is_empty(output->partial_, e)) {
    if (Status s = write_whole_file(stamp, identity); !s) return std::move(s).error();
    return output;
  }
  const std::string_view text = old ? old->text() : std::string_view();
  if (text != identity)
    return Error{ErrorCode::kInvalidArgument,
                 fmt::format("{}: is the beginning of another model or of other settings ({}); remove it to "
                             "start anew",
                             output->partial_, first_difference(text, identity)),
                 "output"};
  return output;
}

Output::~Output() {
  if (lock_ >= 0) ::close(lock_);
}

// Held as long as this object is: two runs would write the same files.
Status Output::lock() {
  lock_ = ::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  // Where a file system has no locks, nothing is lost but this.
  if (lock_ >= 0 && flock(lock_, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK)
    return Error{ErrorCode::kInvalidArgument, fmt::format("{}: another run is writing it", partial_), "output"};
  // The other run may have ended between the look at OUT and the lock, and this folder be that OUT.
  if (lock_ < 0 || exists(out_))
    return Error{ErrorCode::kInvalidArgument, fmt::format("{}: another run has just written it", out_),
                 "output"};
  return {};
}

std::string Output::shard(int layer) const {
  return fmt::format("{}/model-{:05}-of-{:05}.safetensors", partial_, layer + 2, checkpoint_.spec().layers + 1);
}

int Output::layers_done() const {
  int done = 0;
  while (done < checkpoint_.spec().layers && exists(shard(done))) ++done;
  return done;
}

Status Output::save_residuals(int layer, std::span<const Matrix> residuals) {
  const int64_t at = layer;
  std::vector<std::span<const std::byte>> pieces = {std::as_bytes(std::span(&at, 1))};
  for (const Matrix& m : residuals) pieces.push_back(std::as_bytes(std::span(m.values)));
  return kept(write_whole_file(partial_ + "/" + kResiduals, pieces));
}

std::optional<int> Output::load_residuals(std::span<Matrix> residuals) const {
  Result<MappedFile> file = MappedFile::open(partial_ + "/" + kResiduals);
  if (!file) return {};
  size_t at = sizeof(int64_t), size = at;
  for (const Matrix& m : residuals) size += m.values.size() * sizeof(float);
  if (file->bytes().size() != size) return {};
  int64_t layer = 0;
  std::memcpy(&layer, file->bytes().data(), sizeof layer);
  for (Matrix& m : residuals) {
    std::memcpy(m.values.data(), file->bytes().data() + at, m.values.size() * sizeof(float));
    at += m.values.size() * sizeof(float);
  }
  return layer >= 0 && layer <= layers_done() ? std::optional(int(layer)) : std::nullopt;
}

// A tensor that is not quantized: the bytes of a float source as they are, else f16; vectors f32.
Result<std::vector<OutputTensor>> Output::plain_tensor(const std::string& slot, const Matrix* replaced) const {
  const std::string name = hugging_face_name(family_, slot, "model.");
  const std::unique_ptr<RowSource> source = checkpoint_.rows(slot);
  CHECK(source && !name.empty(), "every slot has rows and a name");
  const WeightFormat format = source->format();
  const bool vector = source->rows() == 1;
  if (!vector && format.is_float() && !replaced) {
    const std::vector<int32_t> order = checkpoint_.row_order(slot);
    const char* type = format.element == WeightElement::f32   ? "F32"
                       : format.element == WeightElement::f16 ? "F16"
                                                              : "BF16";
    OutputTensor out{name, type, {source->rows(), source->cols()}, {}};
    DecodedRow row;
    std::vector<float> values(size_t(source->cols()));
    for (int64_t r = 0; r < source->rows(); r++) {
      const int64_t stored = order.empty() ? r : order[size_t(r)];
      decode_f32(*source, stored, row, values.data());
      if (Status finite = check_finite(checkpoint_, slot, stored, values); !finite)
        return std::move(finite).error();
      out.data.insert(out.data.end(), row.raw.begin(), row.raw.end());
    }
    checkpoint_.release(slot);
    return std::vector{std::move(out)};
  }
  Result<Matrix> read = replaced ? Result<Matrix>(*replaced) : read_tensor(checkpoint_, slot);
  if (!read) return std::move(read).error();
  if (!vector) return std::vector{half_tensor(name, *read)};
  if (family_.norms_plus_one && slot.ends_with("norm.weight"))
    for (float& v : read->values) v -= 1;
  OutputTensor out{name, "F32", {read->cols}, std::vector<std::byte>(read->values.size() * sizeof(float))};
  std::memcpy(out.data.data(), read->values.data(), out.data.size());
  return std::vector{std::move(out)};
}

Status Output::write_layer(int layer, const QuantizedLayer& result) {
  std::vector<OutputTensor> tensors;
  for (const Slot& slot : slots_of(checkpoint_.spec())) {
    const SlotPlace place = slot_place(slot.name);
    if (place.layer != layer) continue;
    const auto quantized = result.matrices.find(place.rest);
    const auto replaced = result.replaced.find(place.rest);
    const Matrix* other = replaced == result.replaced.end() ? nullptr : &replaced->second;
    Result<std::vector<OutputTensor>> made =
        plan_.layout == Layout::gguf
            ? gguf_tensor(checkpoint_, slot.name,
                          quantized == result.matrices.end() ? nullptr : &quantized->second, other)
        : quantized != result.matrices.end()
            ? folder_tensors(plan_, without_weight(hugging_face_name(family_, slot.name, "model.")),
                             quantized->second)
            : plain_tensor(slot.name, other);
    if (!made) return std::move(made).error();
    for (OutputTensor& t : *made) tensors.push_back(std::move(t));
  }
  return kept(write_safetensors(shard(layer), tensors, {{"format", "pt"}}));
}

// A failure to write loses only what was being written.
Status Output::kept(Status written) const {
  if (written || written.error().code != ErrorCode::kIo) return written;
  Error error = written.error();
  error.message += fmt::format("; what is done is kept in {}: the same command goes on from there", partial_);
  return error;
}

LinearNames Output::names() const {
  LinearNames out;
  std::set<std::string, std::less<>> targets;
  for (const LinearGroup& g : plan_.groups) {
    targets.insert(g.slots.begin(), g.slots.end());
    std::vector<std::string> block;
    for (const std::string& slot : g.slots)
      if (!plan_.kept.contains(slot))
        block.push_back(
            without_weight(hugging_face_name(family_, "blk.0." + slot, "")).substr(sizeof "layers.0." - 1));
    if (!block.empty()) out.quantized.push_back(std::move(block));
  }
  for (const Slot& slot : slots_of(checkpoint_.spec())) {
    const SlotPlace place = slot_place(slot.name);
    if (slot.matrix && place.layer >= 0 && (!targets.contains(place.rest) || plan_.kept.contains(place.rest)))
      out.kept.push_back(without_weight(hugging_face_name(family_, slot.name, "model.")));
  }
  return out;
}

Status Output::finish(const Companions& companions) { return kept(finish_all(companions)); }

Status Output::finish_all(const Companions& companions) {
  std::vector<OutputTensor> tensors;
  for (const Slot& slot : slots_of(checkpoint_.spec())) {
    if (slot_place(slot.name).layer >= 0) continue;
    Result<std::vector<OutputTensor>> made = plan_.layout == Layout::gguf
                                                 ? gguf_tensor(checkpoint_, slot.name, nullptr, nullptr)
                                                 : plain_tensor(slot.name, nullptr);
    if (!made) return std::move(made).error();
    for (OutputTensor& t : *made) tensors.push_back(std::move(t));
  }
  if (Status s = write_safetensors(shard(-1), tensors, {{"format", "pt"}}); !s) return s;
  std::error_code e;
  if (plan_.layout == Layout::gguf) {
    std::vector<std::string> shards;
    for (int layer = -1; layer < checkpoint_.spec().layers; layer++) shards.push_back(shard(layer));
    if (Status s =
            write_gguf(*checkpoint_.gguf(), shards,
                       {{kMetadataGgufKey, companions.metadata}, {kWindowsGgufKey, companions.windows}}, out_);
        !s)
      return s;
    fs::remove_all(partial_, e);
    return {};
  }
  if (Status s = finish_folder(companions); !s) return s;
  fs::remove(partial_ + "/" + kResiduals, e);
  fs::rename(partial_, out_, e);
  if (e) return io(out_, e);
  fs::remove(out_ + "/" + kIdentity, e);  // last: with it the run can be gone on with
  return {};
}

// What says how the weights are to be read; empty for a GGUF file. Errors: of extended_config and
// config_from_numbers, and a GGUF file that is quantized already by this program.
Result<std::string> Output::config(const std::string& members) const {
  if (const GgufFile* gguf = checkpoint_.gguf()) {
    if (gguf->string(kMetadataGgufKey)) return quantized_already(checkpoint_.path(), kMetadataGgufKey);
    if (plan_.layout == Layout::gguf) return std::string();
    auto scaled = spec_of_config(checkpoint_);
    if (!scaled) return std::move(scaled).error();
    return config_from_numbers(*scaled, checkpoint_.path(), members);
  }
  Result<std::string> own = checkpoint_.side_file("config.json");
  if (!own) return own;
  return extended_config(*own, checkpoint_.path() + "/config.json", members);
}

Status Output::finish_folder(const Companions& companions) const {
  const std::string all = fmt::format("  \"quantization_config\": {},\n  \"{}\": {}",
                                      quantization_config(plan_, names()), kMetadataKey, companions.metadata);
  Result<std::string> text = config(all);
  if (!text) return std::move(text).error();
  if (Status s = write_whole_file(partial_ + "/config.json", *text); !s) return s;
  if (Status s = write_index(); !s) return s;
  return write_side_files(companions);
}

Status Output::write_index() const {
  size_t bytes = 0;
  std::string map;
  for (int layer = -1; layer < checkpoint_.spec().layers; layer++) {
    Result<MappedFile> file = MappedFile::open(shard(layer));
    if (!file) return std::move(file).error();
    Result<std::vector<SafetensorsTensor>> tensors = parse_safetensors(file->bytes(), shard(layer));
    if (!tensors) return std::move(tensors).error();
    const std::string name = fs::path(shard(layer)).filename();
    for (const SafetensorsTensor& t : *tensors) {
      bytes += t.data.size();
      map += fmt::format("{}\n    {}: {}", map.empty() ? "" : ",", json_text(t.name), json_text(name));
    }
  }
  return write_whole_file(
      partial_ + "/model.safetensors.index.json",
      fmt::format("{{\n  \"metadata\": {{\"total_size\": {}}},\n  \"weight_map\": {{{}\n  }}\n}}\n", bytes,
                  map));
}

Status Output::write_side_files(const Companions& companions) const {
  const std::pair<const char*, const std::string*> own[] = {
      {kWindowsFile, &companions.windows},
      {"tokenizer.json", &companions.tokenizer_json},
      {"tokenizer_config.json", &companions.tokenizer_config}};
  for (const auto& [name, text] : own) {
    if (text->empty()) continue;
    if (Status s = write_whole_file(partial_ + "/" + name, *text); !s) return s;
  }
  for (const char* name : kSideFiles) {
    Result<std::string> text = checkpoint_.side_file(name);
    if (!text && text.error().code == ErrorCode::kNotFound) continue;
    if (!text) return std::move(text).error();
    if (Status s = write_whole_file(partial_ + "/" + name, *text); !s) return s;
  }
  return {};
}

}  // namespace sluice::quantize
