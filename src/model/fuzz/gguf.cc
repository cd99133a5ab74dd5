// Any bytes as a GGUF file: refused or read, and what is read stays inside the bytes.
#include <cstdlib>

#include "model/families/family.h"
#include "model/formats/gguf.h"
#include "model/formats/rows.h"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace sluice;
  const auto file = GgufFile::parse(std::as_bytes(std::span(data, size)), "fuzz.gguf");
  if (!file) {
    if (file.error().message.find('\n') != std::string::npos) std::abort();
    return 0;
  }
  for (const Family* family : families()) {
    if (family->read_gguf) (void)read_gguf_spec(*family, **file);
  }
  (void)(*file)->strings("tokenizer.ggml.tokens");
  (void)(*file)->numbers("tokenizer.ggml.scores");
  DecodedRow row;
  for (const GgufTensor& t : (*file)->tensors()) {
    if (!t.type->readable()) continue;
    const auto rows = make_rows(*t.type, t.data, t.rows(), t.cols());
    rows->decode(0, row);
    rows->decode(rows->rows() - 1, row);
  }
  return 0;
}
