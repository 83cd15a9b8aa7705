// Every program that the lane's tests emit is held against tests/tpu/proof/compiled.txt: what Google's compiler made of
// exactly this text. A text that is not listed there fails here, in milliseconds and without a compiler.
//
// TESSERA_TPU_MODULES names a folder that the programs are written to, NAME.mlir beside NAME.digest: for jaxlib's
// dialect (tests/peers/dialect_test.py) and for the compiler (script/tpu-proof compiled).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <vector>

#include "base/hash.h"
#include "tessera/tessera.h"

namespace tessera {

// The class key is part of a module's name and says nothing of the program.
inline std::string TextDigest(const ProgramText& program) {
  const std::string key = program.name.substr(program.name.size() - kHexDigits);
  std::string text = program.text;
  for (size_t at = text.find(key); at != std::string::npos; at = text.find(key, at)) text.erase(at, key.size());
  Hasher hasher;
  hasher.Text(text);
  return Hex(hasher.Finish());
}

// The table's rows by name: a text's digest, then what the compiler gave, or "not-compiled".
inline const std::map<std::string, std::vector<std::string>>& CompiledTable() {
  static const std::map<std::string, std::vector<std::string>> table = [] {
    std::map<std::string, std::vector<std::string>> rows;
    std::ifstream in(TESSERA_COMPILED_TABLE);
    for (std::string line; std::getline(in, line);) {
      std::istringstream words(line);
      std::string name;
      if (!(words >> name) || name[0] == '#') continue;
      for (std::string word; words >> word;) rows[name].push_back(word);
    }
    return rows;
  }();
  return table;
}

// Of a pass each, forward first.
inline void HoldPrograms(const std::string& name, const std::vector<ProgramText>& programs) {
  const char* folder = std::getenv("TESSERA_TPU_MODULES");
  for (const ProgramText& program : programs) {
    const std::string module = name + "_" + program.pass;
    const std::string digest = TextDigest(program);
    if (folder != nullptr) {
      std::ofstream(std::string(folder) + "/" + module + ".mlir") << program.text;
      std::ofstream(std::string(folder) + "/" + module + ".digest") << digest << "\n";
      continue;  // who asks for the programs is about to compile them
    }
    const auto row = CompiledTable().find(module);
    const bool is_listed = row != CompiledTable().end() && !row->second.empty() && row->second[0] == digest;
    EXPECT_TRUE(is_listed) << module << ": tests/tpu/proof/compiled.txt has no row for this text (" << digest
                           << "): script/tpu-proof compiled --update " << module << " compiles it and writes one";
    if (is_listed && row->second.size() > 1 && row->second[1] == "not-compiled") {
      std::cout << module << ": not compiled yet; script/tpu-proof compiled --update does\n";
    }
  }
}

}  // namespace tessera
