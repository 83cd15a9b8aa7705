// The next step after a mistake that is known: a file that is another kind of file than what it was given for.
#pragma once

#include <string>

#include "tessera/error.h"

namespace tessera::program {

enum class FileUse { kContract, kBatch, kTensors, kReceipt };

// The error, and what the file looks like and where it would be right, when that can be told from what is in it.
Error WithFileHint(Error error, const std::string& path, FileUse given_for);

}  // namespace tessera::program
