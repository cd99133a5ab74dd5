#include "text/stop_matcher.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "text/utf8.h"

namespace sluice {

StopMatcher::StopMatcher(std::vector<std::string> stops, StopText stop_text) : stop_text_(stop_text) {
  for (std::string& text : stops) {
    Stop stop{std::move(text), {}, 0};
    stop.border.resize(stop.text.size());
    for (uint32_t i = 1, k = 0; i < stop.text.size(); ++i) {
      while (k > 0 && stop.text[i] != stop.text[k]) k = stop.border[k - 1];
      k += stop.text[i] == stop.text[k];
      stop.border[i] = k;
    }
    stops_.push_back(std::move(stop));
  }
}

void StopMatcher::advance(Stop& stop, char byte) {
  if (stop.text.empty()) return;
  while (stop.state > 0 && stop.text[stop.state] != byte) stop.state = stop.border[stop.state - 1];
  stop.state += stop.text[stop.state] == byte;
}

void StopMatcher::push(std::string_view text, std::string& out) {
  // Nothing new decides nothing: what is held stays held.
  if (stopped() || text.empty()) return;
  size_t longest = 0;
  for (const char byte : text) {
    held_ += byte;
    longest = 0;
    for (size_t i = 0; i < stops_.size(); ++i) {
      advance(stops_[i], byte);
      longest = std::max<size_t>(longest, stops_[i].state);
      const bool whole = stops_[i].state > 0 && stops_[i].state == stops_[i].text.size();
      if (whole && (matched_ < 0 || stops_[i].text.size() > matched().size())) matched_ = int(i);
    }
    if (!stopped()) continue;
    if (stop_text_ == StopText::kLeaveOut) held_.erase(held_.size() - matched().size());
    return finish(out);
  }
  // Text and stop strings are whole characters, so only odd input makes the second term matter.
  size_t sure = held_.size() - longest;
  sure -= utf8_incomplete_tail(std::string_view(held_).substr(0, sure));
  out.append(held_, 0, sure);
  held_.erase(0, sure);
}

void StopMatcher::finish(std::string& out) {
  out += held_;
  held_.clear();
}

const std::string& StopMatcher::matched() const {
  CHECK(stopped());
  return stops_[size_t(matched_)].text;
}

}  // namespace sluice
