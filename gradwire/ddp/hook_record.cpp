#include "gradwire/ddp/hook_record.h"

#include "gradwire/base/archive.h"
#include "gradwire/base/files.h"
#include "gradwire/hook/named_tensors.h"

namespace gradwire {
namespace {

constexpr ArchiveFormat kHookStateFormat{"gw hooks", 3};

void write(ArchiveWriter& out, const std::map<std::string, std::int64_t>& map) {
  out.number(static_cast<std::int64_t>(map.size()));
  for (const auto& [name, value] : map) {
    out.text(name);
    out.number(value);
  }
}

void write(ArchiveWriter& out, const BucketLayout& layout) {
  out.number(static_cast<std::int64_t>(layout.size()));
  for (const auto& indices : layout) {
    out.number(static_cast<std::int64_t>(indices.size()));
    for (const std::int64_t index : indices) {
      out.number(index);
    }
  }
}

void read(ByteReader& in, std::int64_t& value) {
  value = in.number();
}

void read(ByteReader& in, std::string& value) {
  value = in.text();
}

void read(ByteReader& in, std::map<std::string, std::int64_t>& map) {
  for (auto left = in.count(2 * sizeof(std::int64_t)); left > 0; --left) {
    const std::string name(in.text());
    if (!map.emplace(name, in.number()).second) {
      throw DamagedError(concat("'", name, "' is there twice"));
    }
  }
}

void read(ByteReader& in, NamedTensors& tensors) {
  tensors = read_tensors(in);
}

void read(ByteReader& in, BucketLayout& layout) {
  layout.resize(in.count(sizeof(std::int64_t)));
  for (auto& indices : layout) {
    indices.resize(in.count(sizeof(std::int64_t)));
    for (std::int64_t& index : indices) {
      index = in.number();
    }
  }
}

template <class Value>
void read_section(
    const ArchiveReader& archive, std::string_view name, Value& value) {
  ByteReader in = archive.section(name);
  read(in, value);
  in.end();
}

HookRecord decode(std::string_view bytes) {
  const ArchiveReader archive(bytes, kHookStateFormat);
  HookRecord record;
  read_section(archive, "save", record.save);
  read_section(archive, "hook", record.owner.hook);
  read_section(archive, "world", record.world);
  read_section(archive, "rank", record.rank);
  read_section(archive, "parameters", record.owner.parameters);
  read_section(archive, "layout", record.layout);
  read_section(archive, "numbers", record.state.numbers);
  read_section(archive, "shared", record.state.shared);
  read_section(archive, "residuals", record.state.residuals);
  return record;
}

}  // namespace

std::string encode_record(const HookRecord& record) {
  ArchiveWriter out(kHookStateFormat);
  out.begin("save");
  out.number(record.save);
  out.begin("hook");
  out.text(record.owner.hook);
  out.begin("world");
  out.number(record.world);
  out.begin("rank");
  out.number(record.rank);
  out.begin("parameters");
  write(out, record.owner.parameters);
  out.begin("layout");
  write(out, record.layout);
  out.begin("numbers");
  write(out, record.state.numbers);
  out.begin("shared");
  write_tensors(out, record.state.shared);
  out.begin("residuals");
  write_tensors(out, record.state.residuals);
  return std::move(out).finish();
}

HookRecord decode_record(const std::string& bytes, const std::string& where) {
  if (bytes.starts_with("PK\x03\x04")) {
    fail(
        "ddp",
        "hook state ",
        where,
        " is a zip archive, as gradwire wrote up to version 2 of its hook "
        "states, expected version ",
        kHookStateFormat.version,
        ": loading one can run code that it contains. Train on without it; "
        "residuals then start from zero");
  }
  try {
    return decode(bytes);
  } catch (const DamagedError& e) {
    fail(
        "ddp",
        "hook state ",
        where,
        " is damaged or not a hook state: ",
        e.reason());
  }
}

HookRecord read_record(const std::string& path) {
  return decode_record(read_whole(path), concat("'", path, "'"));
}

}  // namespace gradwire
