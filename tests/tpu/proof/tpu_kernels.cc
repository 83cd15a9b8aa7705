// tpu_kernels FOLDER: writes the Splash kernels of the proof, NAME.kernel with NAME.digest, and their list, cases.json.
#include <fmt/format.h>

#include <cstdio>
#include <fstream>

#include "lanes/xla/mosaic/print.h"
#include "tpu/proof/splash_cases.h"

int main(int argc, char** argv) {
  using namespace tessera;
  if (argc != 2) {
    fmt::print(stderr, "usage: tpu_kernels FOLDER\n");
    return 2;
  }
  const std::string folder = argv[1];
  const std::vector<proof::SplashCase> cases = proof::SplashCases();
  for (const proof::SplashCase& wish : cases) {
    const Result<mosaic::Module> module = proof::KernelOf(wish);
    if (!module) {
      fmt::print(stderr, "{}: {}\n", wish.name, ToText(module.error()));
      return 1;
    }
    std::ofstream(folder + "/" + wish.name + ".kernel") << mosaic::Print(*module);
    std::ofstream(folder + "/" + wish.name + ".digest") << proof::TextDigest(wish).value() << "\n";
  }
  std::ofstream list(folder + "/cases.json");
  list << proof::ToJson(cases);
  list.close();
  return list.good() ? 0 : 1;
}
