#include "text/tokenizer_model.h"

#include <fmt/format.h>

#include <cstring>

namespace sluice {
namespace {

constexpr size_t kMaxFileBytes = size_t(512) << 20;
constexpr size_t kMaxPieces = 4 << 20;

// Field numbers of sentencepiece_model.proto.
enum ModelField { kPieces = 1, kTrainer = 2, kNormalizer = 3 };
enum PieceField { kText = 1, kScore = 2, kType = 3 };
enum TrainerField {
  kModelType = 3,
  kSpaceAsSuffix = 24,
  kByteFallback = 35,
  kUnkId = 40,
  kBosId = 41,
  kEosId = 42,
  kPadId = 43
};
enum NormalizerField { kCharsMap = 2, kDummyPrefix = 3, kRemoveExtraSpaces = 4, kEscapeSpaces = 5 };

struct Field {
  uint32_t number = 0;
  uint32_t wire = 0;       // 0: varint, 1: 8 bytes, 2: bytes, 5: 4 bytes
  uint64_t value = 0;      // wire 0, 1, 5
  std::string_view bytes;  // wire 2
};

// Walks the fields of one message. Ends at the end of the bytes, or with failed() at the first that makes no
// sense.
class Fields {
 public:
  explicit Fields(std::string_view bytes) : rest_(bytes) {}
  bool next(Field& f) {
    if (rest_.empty() || failed_) return false;
    uint64_t key = 0, size = 0;
    failed_ = true;
    if (!varint(key) || key >> 3 == 0 || key >> 3 > 0x1FFFFFFF) return false;
    f = {uint32_t(key >> 3), uint32_t(key & 7), 0, {}};
    if (f.wire == 0) {
      failed_ = !varint(f.value);
    } else if (f.wire == 2) {
      failed_ = !varint(size) || size > rest_.size();
      if (!failed_) f.bytes = take(size_t(size));
    } else if (f.wire == 1 || f.wire == 5) {
      const size_t width = f.wire == 1 ? 8 : 4;
      failed_ = rest_.size() < width;
      if (!failed_) std::memcpy(&f.value, take(width).data(), width);
    }
    return !failed_;
  }
  bool failed() const { return failed_; }

 private:
  std::string_view take(size_t n) {
    const std::string_view out = rest_.substr(0, n);
    rest_.remove_prefix(n);
    return out;
  }
  bool varint(uint64_t& out) {
    out = 0;
    for (int shift = 0; shift < 64; shift += 7) {
      if (rest_.empty()) return false;
      const uint8_t byte = uint8_t(take(1)[0]);
      out |= uint64_t(byte & 0x7F) << shift;
      if (byte < 0x80) return true;
    }
    return false;
  }
  std::string_view rest_;
  bool failed_ = false;
};

Error corrupt(const char* where) {
  return Error{ErrorCode::kCorrupt, fmt::format("tokenizer.model: {}", where)};
}

Status read_piece(std::string_view bytes, VocabularyData& data) {
  std::string_view text;
  float score = 0;
  auto type = TokenType::kNormal;
  Fields fields(bytes);
  for (Field f; fields.next(f);) {
    if (f.number == kText && f.wire == 2) text = f.bytes;
    if (f.number == kScore && f.wire == 5) {
      const uint32_t bits = uint32_t(f.value);
      std::memcpy(&score, &bits, 4);
    }
    if (f.number == kType && f.wire == 0 && f.value >= 1 && f.value <= 6) type = TokenType(f.value);
  }
  if (fields.failed()) return corrupt("a piece is cut short");
  if (data.tokens.size() == kMaxPieces) return corrupt("too many pieces");
  data.tokens.emplace_back(text);
  data.scores.push_back(score);
  data.types.push_back(type);
  return {};
}

Status read_trainer(std::string_view bytes, VocabularyData& data) {
  uint64_t model = 1;
  bool suffix = false;
  Fields fields(bytes);
  for (Field f; fields.next(f);) {
    if (f.wire != 0) continue;
    const auto id = int32_t(uint32_t(f.value));
    if (f.number == kModelType) model = f.value;
    if (f.number == kSpaceAsSuffix) suffix = f.value != 0;
    if (f.number == kByteFallback) data.byte_fallback = f.value != 0;
    if (f.number == kUnkId) data.unk_id = id;
    if (f.number == kBosId) data.bos_id = id;
    if (f.number == kEosId) data.eos_id = id;
    if (f.number == kPadId) data.pad_id = id;
  }
  if (fields.failed()) return corrupt("the trainer part is cut short");
  if (model != 1 && model != 2) {
    return Error{ErrorCode::kUnsupported,
                 fmt::format("tokenizer.model: model type {} (only Unigram and BPE)", model)};
  }
  if (suffix) return Error{ErrorCode::kUnsupported, "tokenizer.model: spaces as suffix"};
  data.kind = model == 1 ? VocabularyKind::kUnigram : VocabularyKind::kSentencePieceBpe;
  return {};
}

Status read_normalizer(std::string_view bytes, VocabularyData& data) {
  bool collapse = true;
  std::string_view map;
  Fields fields(bytes);
  for (Field f; fields.next(f);) {
    if (f.number == kCharsMap && f.wire == 2) map = f.bytes;
    if (f.wire != 0) continue;
    if (f.number == kDummyPrefix) data.add_space_prefix = f.value != 0;
    if (f.number == kRemoveExtraSpaces) collapse = f.value != 0;
    if (f.number == kEscapeSpaces) data.escape_spaces = f.value != 0;
  }
  if (fields.failed()) return corrupt("the normalizer part is cut short");
  data.normalizers.clear();
  if (!map.empty()) data.normalizers.push_back({NormalizeStep::Kind::kPrecompiled, std::string(map)});
  if (collapse) data.normalizers.push_back({NormalizeStep::Kind::kCollapseSpaces});
  return {};
}

}  // namespace

Result<VocabularyData> vocabulary_from_sentencepiece(std::string_view bytes) {
  if (bytes.size() > kMaxFileBytes) return Error{ErrorCode::kTooLarge, "tokenizer.model over 512 MiB"};
  VocabularyData data;
  data.kind = VocabularyKind::kUnigram;
  data.byte_fallback = false;
  data.fuse_unknown = true;
  data.unk_id = 0, data.bos_id = 1, data.eos_id = 2, data.pad_id = -1;
  data.add_space_prefix = true;
  data.space_prefix = SpacePrefix::kFirst;
  data.normalizers = {{NormalizeStep::Kind::kCollapseSpaces}};
  Fields fields(bytes);
  for (Field f; fields.next(f);) {
    if (f.wire != 2) continue;
    Status status;
    if (f.number == kPieces) status = read_piece(f.bytes, data);
    if (f.number == kTrainer) status = read_trainer(f.bytes, data);
    if (f.number == kNormalizer) status = read_normalizer(f.bytes, data);
    if (!status) return status.error();
  }
  if (fields.failed() || data.tokens.empty()) return corrupt("not a SentencePiece model");
  for (int32_t* id : {&data.unk_id, &data.bos_id, &data.eos_id, &data.pad_id}) {
    if (*id < 0 || size_t(*id) >= data.tokens.size()) *id = -1;
  }
  return data;
}

}  // namespace sluice
