// What of JSON Schema (draft 2020-12) an answer can be held to. Each keyword is supported, an annotation, or
// refused by name and path: nothing is silently left unenforced. docs/api.md has the list.
//
// The result is the schema as the grammar's compiler wants it: annotations gone, and a type or an open item or
// property list spelled out where JSON Schema lets it be left out. Every answer that the grammar allows is
// valid by the schema; the reverse need not hold (properties come in the schema's order; without
// `additionalProperties` there are none besides those listed). Pure; linear in the schema.
#pragma once

#include <string>
#include <string_view>

#include "base/result.h"
#include "server/json.h"

namespace sluice {

// `field`: the member that holds it, for errors ("response_format.json_schema.schema").
Result<std::string> checked_json_schema(JsonView schema, std::string_view field);

}  // namespace sluice
