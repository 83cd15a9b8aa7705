// One question to bridge.py and its answer as a tree.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "io/document.h"
#include "lanes/bridge/interpreter.h"

namespace tessera::lanes::bridge {

// TSR-L013 with what Python says where that is an error; TSR-R009 where it is out of memory.
Result<DocumentValue> Ask(const Interpreter& interpreter, std::string_view request);

int64_t NumberOf(const DocumentValue& table, const char* key);  // 0 where it is not there
std::string TextOf(const DocumentValue& table, const char* key);

// TSR-L002 with the reason.
Error Refusal(const Decision& decision);

}  // namespace tessera::lanes::bridge
