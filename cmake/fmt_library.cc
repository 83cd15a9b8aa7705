// fmt 9 compiled out of its headers, for cross builds, which have no foreign libfmt: what the headers declare and do
// not define, and the instantiations that they promise.
#include <fmt/format-inl.h>

namespace fmt::detail {

template auto thousands_sep_impl<char>(locale_ref) -> thousands_sep_result<char>;
template auto decimal_point_impl<char>(locale_ref) -> char;

}  // namespace fmt::detail
