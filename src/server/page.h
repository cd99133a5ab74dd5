// The page at `/`: files of web/ that the binary carries (tools/embed_page.py makes the table at build time),
// and the answers that hand them out. Nothing of it is made at run time, and nothing of it comes from
// elsewhere: the Content-Security-Policy lets the browser load from this server alone.
#pragma once

#include <span>
#include <string_view>

#include "server/http.h"

namespace sluice {

struct PageFile {
  std::string_view name;  // "main.js"
  std::string_view content_type;
  std::string_view tag;  // of its content, 16 hexadecimal digits
  std::string_view bytes, gzipped;
};

std::span<const PageFile> page_files();

// The file, gzip'ed where the client takes that; 304 where it has it already; 404 where there is none.
HttpResponse page_response(std::string_view name, const HttpRequest& request);

}  // namespace sluice
