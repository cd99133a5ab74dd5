#include "base/json_error.h"

#include <simdjson.h>

namespace sluice {

const char* json_error_words(int simdjson_error) {
  switch (simdjson_error) {
    case simdjson::EMPTY:
      return "it is empty";
    case simdjson::UTF8_ERROR:
      return "it is not UTF-8";
    case simdjson::DEPTH_ERROR:
      return "it is nested too deeply";
    case simdjson::NUMBER_ERROR:
      return "a number is malformed";
    case simdjson::STRING_ERROR:
    case simdjson::UNCLOSED_STRING:
    case simdjson::UNESCAPED_CHARS:
      return "a string is malformed or has no end";
    default:
      return "a bracket, comma, quote or value is missing or misplaced";
  }
}

}  // namespace sluice
