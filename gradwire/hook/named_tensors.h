#pragma once

#include <ATen/core/Tensor.h>

#include <map>
#include <string>

#include "gradwire/base/archive.h"

namespace gradwire {

using NamedTensors = std::map<std::string, at::Tensor>;

// Tensors in the section of an archive, and back: their names, types, sizes and
// bytes. Writing throws Error for a type that has no place in files. Reading
// throws DamagedError for bytes that are none, and what it returns is on the
// cpu.
void write_tensors(ArchiveWriter& out, const NamedTensors& tensors);
NamedTensors read_tensors(ByteReader& in);

}  // namespace gradwire
