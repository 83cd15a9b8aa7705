// Files that a run reads because something else names them: a contract's text, the environment. For programs that also
// write files, and must not write over these.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace tessera {

// The files that the bitmaps of a contract's text are in, as the text names them; also of a text with faults.
std::vector<std::string> BitmapFiles(std::string_view contract_text);

// The files that the environment names, where OptionsFromEnvironment finds them: a plugin, a ledger, XLA's flags.
std::vector<std::string> FilesOfEnvironment();

}  // namespace tessera
#pragma GCC visibility pop
