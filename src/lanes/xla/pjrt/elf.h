// Looks at a shared object before the loader does: the loader maps a truncated file and dies of SIGBUS, and its words
// for a file of another machine or no library at all are of little help.
#pragma once

#include <string>

#include "tessera/error.h"

namespace tessera::pjrt {

// Reads the headers only. TSR-L008 for a file that is missing, not a regular file, no ELF shared object, of another
// machine, or shorter than its own headers say.
Status CheckSharedObject(const std::string& path);

// A name for the file's content in 32 hex digits: its size, both ends and samples between, so that it costs a few
// hundred kilobytes of reading where the file may have hundreds of megabytes. Moving the file does not change it.
Result<std::string> ContentName(const std::string& path);

}  // namespace tessera::pjrt
