// Result<T>: a value, or an Error for what the world may do wrong (bad input, a broken file, a full queue).
// Bugs are CHECK (check.h). No exception leaves a room.
#pragma once

#include <optional>
#include <string>
#include <utility>
#include <variant>

#include "base/check.h"

namespace sluice {

// What kind of trouble, so that one file (server/http_error.cc) can map it to a status.
enum class ErrorCode {
  kInvalidArgument,    // the caller's fault: HTTP 400
  kNotFound,           // unknown model, file, id: 404
  kTooLarge,           // over a limit: 413
  kUnavailable,        // not ready, draining: 503
  kResourceExhausted,  // queue full: 429
  kDeadlineExceeded,   // 504
  kUnsupported,        // valid, but not something this build or model can do: 400 / exit 1
  kCorrupt,            // a file that breaks its own format
  kIo,                 // the operating system said no
  kInternal,           // our fault: 500
};

struct Error {
  ErrorCode code = ErrorCode::kInternal;
  std::string message{};  // one line, names the file / field and what to do
  std::string field{};    // API member at fault ("max_tokens"), empty otherwise
};

template <typename T>
class [[nodiscard]] Result {
 public:
  Result(T value) : v_(std::in_place_index<0>, std::move(value)) {}
  Result(Error error) : v_(std::in_place_index<1>, std::move(error)) {}

  bool ok() const { return v_.index() == 0; }
  explicit operator bool() const { return ok(); }

  T& value() & {
    CHECK(ok());
    return *std::get_if<0>(&v_);
  }
  const T& value() const& {
    CHECK(ok());
    return *std::get_if<0>(&v_);
  }
  T&& value() && {
    CHECK(ok());
    return std::move(*std::get_if<0>(&v_));
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  const Error& error() const& {
    CHECK(!ok());
    return *std::get_if<1>(&v_);
  }
  Error&& error() && {
    CHECK(!ok());
    return std::move(*std::get_if<1>(&v_));
  }

 private:
  std::variant<T, Error> v_;
};

// Success without a value.
class [[nodiscard]] Status {
 public:
  Status() = default;
  Status(Error error) : error_(std::move(error)) {}
  bool ok() const { return !error_; }
  explicit operator bool() const { return ok(); }
  const Error& error() const& {
    CHECK(error_.has_value());
    return *error_;
  }
  Error&& error() && {
    CHECK(error_.has_value());
    return std::move(*error_);
  }

 private:
  std::optional<Error> error_;
};

}  // namespace sluice
