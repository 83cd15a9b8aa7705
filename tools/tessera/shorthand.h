// A contract in one argument, for trying things: causal,window=1023:8192:h8/2:d128:bf16
#pragma once

#include <string>

#include "tessera/error.h"

namespace tessera::program {

// Whether an argument that stands where a contract's file may stand is a contract itself: it has a colon, and no file
// is named so. A file wins, because nothing that worked with it may come to mean something else.
bool IsShorthand(const std::string& argument);

// The contract's text, of MASK:LENGTH[:FIELD...]. MASK is an expression, or terms joined by commas (all must hold) with
// their numbers after "=". LENGTH is tokens, or QxKV. Fields, in any order and each at most once: hQ[/KV] heads,
// dQK[/V] dims, bN batch, tQxKV tiles, capX softcap, and f32, bf16 or f16.
Result<std::string> TextOfShorthand(const std::string& argument);

// What was given for a contract, as receipts say it: "file c.toml", "standard input", "argument causal:64".
std::string SourceOf(const std::string& argument);

}  // namespace tessera::program
