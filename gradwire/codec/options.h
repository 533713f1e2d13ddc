#pragma once

// Options that several codecs have.

#include "gradwire/codec/codec.h"

namespace gradwire::codec {

inline Option block_option() {
  return {
      .name = "block",
      .fallback = std::int64_t{512},
      .help = "elements that share a scale; tensor: all elements of a message",
      .least = 32,
      .most = 1 << 20,
      .named = {{"tensor", 0}}};
}

inline Option scheme_option() {
  return {
      .name = "scheme",
      .fallback = "symmetric",
      .help = "codes around zero, or from the smallest element to the largest",
      .choices = {"symmetric", "affine"}};
}

inline Option rounding_option() {
  return {
      .name = "rounding",
      .fallback = "nearest",
      .help = "stochastic: up or down at random, right on average",
      .choices = {"nearest", "stochastic"}};
}

}  // namespace gradwire::codec
