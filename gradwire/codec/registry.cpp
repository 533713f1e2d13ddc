#include <algorithm>

#include "gradwire/base/error.h"
#include "gradwire/base/spec.h"
#include "gradwire/codec/codec.h"

// The only list of codecs. A codec is a file of this name beside this one that
// defines `CodecInfo <name>_codec()`.
#define GRADWIRE_CODECS(X) \
  X(fp16)                  \
  X(bf16)                  \
  X(int8)                  \
  X(int4)                  \
  X(fp8)

namespace gradwire::codec {

#define GRADWIRE_DECLARE(name) CodecInfo name##_codec();
GRADWIRE_CODECS(GRADWIRE_DECLARE)
#undef GRADWIRE_DECLARE

const std::vector<CodecInfo>& codecs() {
#define GRADWIRE_ROW(name) name##_codec(),
  static const std::vector<CodecInfo> rows{GRADWIRE_CODECS(GRADWIRE_ROW)};
#undef GRADWIRE_ROW
  return rows;
}

const CodecInfo& find_codec(const std::string& name) {
  const auto& rows = codecs();
  const auto row = std::ranges::find(rows, name, &CodecInfo::name);
  if (row != rows.end()) {
    return *row;
  }
  std::vector<std::string> known;
  known.reserve(rows.size());
  for (const auto& info : rows) {
    known.push_back(info.name);
  }
  fail(
      "codec",
      "unknown codec '",
      name,
      "', known are ",
      join(known),
      did_you_mean(name, known));
}

namespace {

const CodecInfo& row_of(const Spec& spec) {
  const CodecInfo& info = find_codec(spec.name);
  if (spec.inner) {
    fail("codec", "'", spec.name, "' takes nothing in parentheses");
  }
  return info;
}

}  // namespace

Codec make_codec(const std::string& text) {
  const Spec spec = parse_spec(text);
  const CodecInfo& info = row_of(spec);
  return info.make(Options(spec.name, info.options, spec.options));
}

std::string check_codec_spec(const std::string& text) {
  const Spec spec = parse_spec(text);
  const CodecInfo& info = row_of(spec);
  return to_spec(
      spec.name, info.options, Options(spec.name, info.options, spec.options));
}

}  // namespace gradwire::codec
