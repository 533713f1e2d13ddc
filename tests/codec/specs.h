#pragma once

// Every variant of every codec, for what must hold for all of them.

#include <string>
#include <vector>

#include "gradwire/codec/codec.h"

namespace gradwire::codec::test {

// A codec with each of its words, one after another: "int8:scheme=affine,...".
inline std::vector<std::string> variants_of(const CodecInfo& info) {
  std::vector<std::string> specs{info.name};
  for (const Option& option : info.options) {
    std::vector<std::string> longer;
    for (const std::string& spec : specs) {
      for (const std::string& word : option.choices) {
        const char* join = spec == info.name ? ":" : ",";
        longer.push_back(spec + join + option.name + "=" + word);
      }
    }
    if (!longer.empty()) {
      specs = longer;
    }
  }
  return specs;
}

inline std::vector<std::string> all_variants() {
  std::vector<std::string> specs;
  for (const CodecInfo& info : codecs()) {
    for (const std::string& spec : variants_of(info)) {
      specs.push_back(spec);
    }
  }
  return specs;
}

inline bool has_scales(const Codec& codec) {
  const Segments one{{1, 0, 0}};
  return codec.message_parts(one).metadata >
         static_cast<std::int64_t>(kHeaderBytes);
}

// The same codec with another block size; casts have none.
inline std::string with_block(const std::string& spec, const char* block) {
  const char* join = spec.find(':') == std::string::npos ? ":" : ",";
  return has_scales(make_codec(spec)) ? spec + join + "block=" + block : spec;
}

}  // namespace gradwire::codec::test
