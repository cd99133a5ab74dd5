// A session as one web page that needs nothing else: figures as inline SVG, no script, no network.
#pragma once

#include <string>

#include "tune/report.h"

namespace sluice::tune {

std::string page(const ReportFacts& facts, const Session& session);

}  // namespace sluice::tune
