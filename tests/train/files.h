// What the tests of runs share: a small run file, and texts to train on.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <filesystem>
#include <string>

#include "support/run_program.h"
#include "tessera/train.h"

namespace tessera::train {

// A run small enough for a test, with a field of [train] and one of [data] as its test wants them.
inline std::string RunText(const std::string& more_train = "", const std::string& more_data = "") {
  return "version = 1\n[model]\nvocab = 256\nlayers = 1\nwidth = 16\nnum_q_heads = 2\nnum_kv_heads = 1\nhead_dim = 8\n"
         "mlp_width = 16\nrows = 2\nrow_tokens = 64\nmasks = [\"causal and documents\"]\n[data]\nfolder = \"texts\"\n"
         "files = [\"*.cc\", \"*.py\"]\nheld_out = 3\n" +
         more_data + "[train]\nsteps = 6\nlearning_rate = 1e-2\nlog_every = 2\n" + more_train;
}

// Twelve short sources, some of which are held out.
inline void WriteTexts(const std::string& folder) {
  std::filesystem::create_directories(folder + "/deep/er");
  for (int i = 0; i < 12; ++i) {
    const bool is_python = i % 3 == 0;
    const std::string name =
        fmt::format("{}/{}file{}.{}", folder, i % 2 == 0 ? "deep/er/" : "", i, is_python ? "py" : "cc");
    std::string text;
    for (int line = 0; line <= i; ++line) {
      text += is_python ? fmt::format("def f{}(x):\n    return x + {}\n", line, i)
                        : fmt::format("int F{}(int x) {{ return x + {}; }}\n", line, i);
    }
    WriteWhole(name, text);
  }
}

inline RunFile ParsedRun(const std::string& text, const std::string& folder) {
  auto run = ParseRunFile(text, folder);
  EXPECT_TRUE(run) << (run ? "" : ToText(run.error()));
  return run ? *run : RunFile{};
}

}  // namespace tessera::train
