#pragma once

#include <torch/script.h>

#include <sstream>
#include <string>

#include "gradwire/base/text.h"

namespace gradwire::test {

// An archive of TorchScript that makes the file while it is loaded.
inline std::string archive_that_makes(const std::string& file) {
  torch::jit::Module module("Hostile");
  module.define(concat(
      "def __getstate__(self) -> int:\n"
      "    return 0\n"
      "def __setstate__(self, state: int) -> None:\n"
      "    assert float(torch.from_file('",
      file,
      "', True, 1).sum()) == 0.0\n"));
  std::ostringstream stream;
  module.save(stream);
  return stream.str();
}

}  // namespace gradwire::test
