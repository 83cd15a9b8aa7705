// What the tests of the program share: the binary under test, the example files, and a JSON reader that never throws.
#pragma once

#include <gtest/gtest.h>

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "support/proves.h"
#include "support/run_program.h"

namespace tessera {

inline ProgramResult Tessera(std::vector<std::string> arguments, const ProgramOptions& options = {}) {
  arguments.insert(arguments.begin(), TESSERA_PROGRAM);
  return RunProgram(arguments, options);
}

inline std::string Example(const std::string& name) { return std::string(TESSERA_SOURCE_DIR "/examples/") + name; }

inline nlohmann::json ParseJson(const std::string& text) { return nlohmann::json::parse(text, nullptr, false); }

// Exactly one document and nothing else: a parser that is given two, or text around one, refuses.
inline nlohmann::json OnlyDocument(const ProgramResult& result) {
  nlohmann::json json = ParseJson(result.out);
  EXPECT_FALSE(json.is_discarded()) << "not one JSON document: " << result.out.substr(0, 300);
  return json;
}

}  // namespace tessera
