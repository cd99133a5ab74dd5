// Bounds of what one client may ask for, beyond those that ServerConfig sets. Each is told in docs and in the
// error text.
#pragma once

#include <cstddef>

namespace sluice::limits {

inline constexpr int kJsonDepth = 64;       // nesting of arrays and objects in a request body
inline constexpr int kStopStrings = 16;     // OpenAI allows 4
inline constexpr size_t kStopBytes = 1024;  // of one stop string
inline constexpr int kStopIds = 64;
inline constexpr int kLogitBias = 1024;        // entries
inline constexpr int kMessages = 4096;         // of one chat request
inline constexpr int kParts = 256;             // of one message's content
inline constexpr int kTemplateArguments = 32;  // members of chat_template_kwargs
inline constexpr int kSchemas = 4096;          // schemas inside one JSON Schema
inline constexpr int kSchemaEnum = 4096;       // values of one enum
inline constexpr int kSchemaCount = 65536;     // minItems, maxLength, …
inline constexpr int kSchemaDepth = 256;       // of JSON, each reference followed once
inline constexpr size_t kRegexBytes = 16 << 10;
inline constexpr int kChoices = 4096;  // of guided_choice
inline constexpr int kTools = 128;     // OpenAI's limit
inline constexpr int kToolMembers = 32;
inline constexpr size_t kToolNameBytes = 128;  // Anthropic's limit; OpenAI's is 64
inline constexpr int kGrammarThreads = 2;      // that compile
inline constexpr int kGrammarQueue = 64;       // requests whose grammar waits to be compiled
inline constexpr int kRequestIdChars = 128;
inline constexpr size_t kCacheSaltBytes = 256;
inline constexpr int kRequestTimeoutMaxMs = 24 * 3600 * 1000;
inline constexpr int kIgnoredShown = 32;  // names in one answer's x-sluice-ignored
inline constexpr int kUnknownNames = 64;  // distinct unknown members that are logged, once each

inline constexpr size_t kInlineBodyBytes = 16 << 10;  // longer bodies are parsed and tokenised by the text pool
inline constexpr int kTextQueue = 1024;               // jobs waiting for the text pool
inline constexpr size_t kStreamHighWater =
    64 << 10;  // bytes unsent to a client before its tokens stay in the engine
inline constexpr int kSendBufferBytes = 256 << 10;     // of a socket, in the kernel
inline constexpr size_t kFreshBufferBytes = 4 << 10;   // of a buffer for what is to be sent; it grows
inline constexpr size_t kKeptBufferBytes = 128 << 10;  // of one that is kept for the next answer
inline constexpr size_t kKeptBuffers = 64;             // of a network thread
inline constexpr size_t kPipelinedBytes = 64 << 10;    // read ahead of the request that is being answered
inline constexpr size_t kBodyBytesInFlight = size_t{1}
                                             << 30;  // of all requests that are being read or prepared
inline constexpr int kLingerMs = 3000;     // reading on after an early error, so that the client sees it
inline constexpr int kLiveListeners = 32;  // of /v1/live at the same time
inline constexpr int kTickMs = 100;        // how often deadlines of connections are looked at

}  // namespace sluice::limits
