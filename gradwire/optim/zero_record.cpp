#include "gradwire/optim/zero_record.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "gradwire/base/archive.h"
#include "gradwire/hook/named_tensors.h"

namespace gradwire {
namespace {

constexpr ArchiveFormat kZeroFormat{"gw zero ", 1};

void write_piece(ArchiveWriter& out, const ZeroPiece& piece) {
  out.number(piece.first);
  out.number(piece.elems);
  out.number(static_cast<std::int64_t>(piece.state.numbers.size()));
  for (const auto& [name, value] : piece.state.numbers) {
    out.text(name);
    out.number(value);
  }
  write_tensors(out, piece.state.tensors);
}

ZeroPiece read_piece(ByteReader& in) {
  ZeroPiece piece{.first = in.number(), .elems = in.number(), .state = {}};
  if (piece.first < 0 || piece.elems < 0) {
    throw DamagedError("a piece has an impossible place");
  }
  for (auto left = in.count(2 * sizeof(std::int64_t)); left > 0; --left) {
    const std::string name(in.text());
    if (!piece.state.numbers.emplace(name, in.number()).second) {
      throw DamagedError(concat("'", name, "' is there twice"));
    }
  }
  piece.state.tensors = read_tensors(in);
  return piece;
}

std::int64_t read_number(const ArchiveReader& archive, const char* section) {
  ByteReader in = archive.section(section);
  const std::int64_t number = in.number();
  in.end();
  return number;
}

ZeroRecord decode_checked(std::string_view bytes) {
  const ArchiveReader archive(bytes, kZeroFormat);
  ZeroRecord record;
  record.save = read_number(archive, "save");
  record.world = read_number(archive, "world");
  record.rank = read_number(archive, "rank");
  ByteReader optimizer = archive.section("optimizer");
  record.optimizer = optimizer.text();
  optimizer.end();
  ByteReader parameters = archive.section("parameters");
  for (auto left = parameters.count(2 * sizeof(std::int64_t)); left > 0;
       --left) {
    const std::string name(parameters.text());
    record.parameters[name] = parameters.text();
  }
  parameters.end();
  ByteReader pieces = archive.section("pieces");
  for (auto left = pieces.count(4 * sizeof(std::int64_t)); left > 0; --left) {
    const std::string name(pieces.text());
    if (!record.pieces.emplace(name, read_piece(pieces)).second) {
      throw DamagedError(concat("'", name, "' is there twice"));
    }
  }
  pieces.end();
  return record;
}

// One number an element.
bool is_by_element(const at::Tensor& tensor, const ZeroPiece& piece) {
  return tensor.dim() == 1 && tensor.numel() == piece.elems;
}

[[noreturn]] void refuse_pieces(const std::string& name, const char* why) {
  fail("optim", "the state of parameter '", name, "' ", why);
}

}  // namespace

std::string encode_zero_record(const ZeroRecord& record) {
  ArchiveWriter out(kZeroFormat);
  out.begin("save");
  out.number(record.save);
  out.begin("world");
  out.number(record.world);
  out.begin("rank");
  out.number(record.rank);
  out.begin("optimizer");
  out.text(record.optimizer);
  out.begin("parameters");
  out.number(static_cast<std::int64_t>(record.parameters.size()));
  for (const auto& [name, description] : record.parameters) {
    out.text(name);
    out.text(description);
  }
  out.begin("pieces");
  out.number(static_cast<std::int64_t>(record.pieces.size()));
  for (const auto& [name, piece] : record.pieces) {
    out.text(name);
    write_piece(out, piece);
  }
  return std::move(out).finish();
}

ZeroRecord decode_zero_record(
    const std::string& bytes, const std::string& where) {
  try {
    return decode_checked(bytes);
  } catch (const DamagedError& e) {
    fail(
        "optim",
        where,
        " is damaged or no state of a ZeroRedundancyOptimizer: ",
        e.reason());
  }
}

ParameterState assemble_pieces(
    const std::string& name,
    const std::vector<const ZeroPiece*>& pieces,
    std::int64_t first,
    std::int64_t elems) {
  ParameterState result;
  std::int64_t covered = 0;
  for (const ZeroPiece* piece : pieces) {
    const std::int64_t begin = std::max(first, piece->first);
    const std::int64_t end =
        std::min(first + elems, piece->first + piece->elems);
    if (begin >= end && elems > 0) {
      continue;
    }
    const bool is_first = covered == 0;
    covered += end - begin;
    const bool same_names = std::ranges::equal(
        piece->state.tensors,
        result.tensors,
        {},
        [](const auto& item) { return item.first; },
        [](const auto& item) { return item.first; });
    if (!is_first && (!same_names || piece->state.numbers != result.numbers)) {
      refuse_pieces(name, "has parts that do not go together");
    }
    result.numbers = piece->state.numbers;
    for (const auto& [entry, tensor] : piece->state.tensors) {
      if (!is_by_element(tensor, *piece)) {
        if (piece->first != first || piece->elems != elems) {
          refuse_pieces(name, "cannot be cut");
        }
        result.tensors[entry] = tensor;
        continue;
      }
      at::Tensor& to = result.tensors[entry];
      if (is_first) {
        to = at::zeros({elems}, tensor.options());
      } else if (to.scalar_type() != tensor.scalar_type()) {
        refuse_pieces(name, "has parts that do not go together");
      }
      to.narrow(0, begin - first, end - begin)
          .copy_(tensor.narrow(0, begin - piece->first, end - begin));
    }
  }
  if (covered != elems) {
    refuse_pieces(name, "is there for some of its elements only");
  }
  return result;
}

}  // namespace gradwire
