// Every program that the lane's tests emit is held against tests/tpu/proof/compiled.txt: what Google's compiler made of
// exactly this text. A text that is not listed there fails here, in milliseconds and without a compiler.
//
// TESSERA_TPU_MODULES names a folder that the programs are written to, NAME.mlir beside NAME.digest: for jaxlib's
// dialect (tests/peers/dialect_test.py) and for the compiler (script/tpu-proof compiled).
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
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

// A table's rows by name: a text's digest, then what the compiler gave, or "not-compiled".
using CompiledRows = std::map<std::string, std::vector<std::string>>;
inline CompiledRows ReadCompiled(const char* path) {
  CompiledRows rows;
  std::ifstream in(path);
  for (std::string line; std::getline(in, line);) {
    std::istringstream words(line);
    std::string name;
    if (!(words >> name) || name[0] == '#') continue;
    std::vector<std::string>& row = rows[name];
    for (std::string word; words >> word;) row.push_back(word);
  }
  return rows;
}

// What is wrong with the row of a text; empty if nothing is.
inline std::string WrongRow(const CompiledRows& rows, const std::string& name, const std::string& digest) {
  const auto row = rows.find(name);
  if (row == rows.end() || row->second.empty() || row->second[0] != digest) return "no row for this text, " + digest;
  constexpr size_t kColumns = 5;
  return row->second.size() == kColumns ? "" : "a row that nobody has compiled";
}

// Whether somebody wants the texts and nothing else: they are about to be compiled.
inline bool AreTextsWanted() { return std::getenv("TESSERA_TPU_MODULES") != nullptr; }

// Of a pass each, forward first.
inline void HoldPrograms(const std::string& name, const std::vector<ProgramText>& programs) {
  const char* folder = std::getenv("TESSERA_TPU_MODULES");
  for (const ProgramText& program : programs) {
    const std::string module = name + "_" + program.pass;
    const std::string digest = TextDigest(program);
    if (folder != nullptr) {
      std::ofstream(std::string(folder) + "/" + module + ".mlir") << program.text;
      std::ofstream(std::string(folder) + "/" + module + ".digest") << digest << "\n";
      continue;
    }
    static const CompiledRows rows = ReadCompiled(TESSERA_COMPILED_TABLE);
    const std::string wrong = WrongRow(rows, module, digest);
    EXPECT_EQ(wrong, "") << module << ": tests/tpu/proof/compiled.txt; script/tpu-proof compiled --update " << module
                         << " compiles it and writes one";
  }
}

}  // namespace tessera
