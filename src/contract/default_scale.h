// The scale of a contract that names none.
#pragma once

#include <cmath>

namespace tessera {

// 1/sqrt(dim) rounded once. Dividing by the rounded root is often one unit off, and then the default and the same
// number written out would be two contracts. One Newton step with an exact residual repairs it.
inline double DefaultScale(double dim) {
  const double guess = 1.0 / std::sqrt(dim);
  const double square = guess * guess;
  const double square_rest = std::fma(guess, guess, -square);
  const double product = dim * square;
  const double product_rest = std::fma(dim, square, -product);
  const double residual = (1.0 - product) - (product_rest + dim * square_rest);
  return std::fma(0.5 * guess, residual, guess);
}

}  // namespace tessera
