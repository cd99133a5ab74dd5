// What is wrong with a JSON text, for people.
#pragma once

namespace sluice {

// `simdjson_error`: a simdjson::error_code, as a number so that its header stays out of others' sources.
const char* json_error_words(int simdjson_error);

}  // namespace sluice
