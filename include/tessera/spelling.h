// What was meant, where a word is not among those that could stand there. For programs that read words from people.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#pragma GCC visibility push(default)
namespace tessera {

// The candidate nearest to `word`, or empty when none is near enough to be a slip of the pen.
std::string_view Nearest(std::string_view word, const std::vector<std::string_view>& candidates);

// "; did you mean X?", or nothing.
std::string DidYouMean(std::string_view word, const std::vector<std::string_view>& candidates);

}  // namespace tessera
#pragma GCC visibility pop
