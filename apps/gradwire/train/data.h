#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>

namespace gradwire::apps {

// Labelled images: `images` is [N, 1, H, W] of bytes, `labels` is [N] of int64.
struct Images {
  at::Tensor images;
  at::Tensor labels;

  std::int64_t size() const {
    return labels.numel();
  }
};

// A data set and the statistics its pixels are normalised with.
struct Dataset {
  std::string name;
  Images train;
  Images test;
  std::int64_t classes = 0;
  double mean = 0;
  double deviation = 1;

  // The images at `indices` as normalised floats.
  at::Tensor inputs(const Images& from, const at::Tensor& indices) const;
};

// `where`: "fashion-mnist" (Debian's dataset-fashion-mnist), "synthetic"
// (generated, the same for the same seed), or a folder with four IDX files,
// gzipped or not. Throws Error that names the file and what is wrong with it.
Dataset load_dataset(const std::string& where, std::uint64_t seed);

// Throws like load_dataset when the files are not there; reads none of them.
void check_dataset(const std::string& where);

}  // namespace gradwire::apps
