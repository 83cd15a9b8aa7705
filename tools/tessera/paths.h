// The one place that decides about files: every file that a command reads or writes is declared here with what is done
// with it, before any work, and two that must not be one are refused. Goals: no output destroys an input or another
// output, however the file is named: by another spelling, a link, a second hard link, or a name that does not exist
// yet. Not a goal: names that come to mean something else while the command runs.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "tessera/error.h"
#include "tessera/receipt.h"

namespace tessera::program {

enum class PathRole {
  kInput,
  kInputOrStandard,  // "-" is standard input
  kOutput,
  kInPlace,  // read, changed and written again
  kFolder,   // every file of a folder that ends in a suffix is an output
};

struct NamedPath {
  std::string name;  // what it is: "--out", "the bitmap of the contract"
  std::string path;
  PathRole role = PathRole::kInput;
  std::string suffix = {};  // of kFolder
};

// What was declared stays so until the program ends. The first one that goes with an earlier one is an error, TSR-R007
// with both names.
Status DeclarePath(NamedPath path);
Status DeclarePaths(std::vector<NamedPath> paths);
// Once a path was refused nothing is written any more, not even a receipt that says so.
bool IsAnyPathRefused();

// Files named inside of files, found when those are read. The bitmaps of a contract's text, found in that folder:
Status DeclareBitmaps(std::string_view contract_text, const std::string& folder);
// What a receipt's run read, and its repeat would.
Status DeclareSourcesOf(const Receipt& receipt);
// What the environment names.
Status DeclareEnvironment();

}  // namespace tessera::program
