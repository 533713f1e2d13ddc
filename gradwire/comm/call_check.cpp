#include "gradwire/comm/call_check.h"

#include <ATen/ops/zeros.h>

#include <algorithm>
#include <cctype>
#include <cstring>
#include <span>

#include "gradwire/base/error.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

// A message: the fingerprint of a text and as much of it as there is room for.
constexpr std::size_t kAskPrintBytes = 8;
constexpr std::size_t kAskBytes = 64;

using AskMessage = std::span<std::uint8_t, kAskBytes>;

AskMessage ask_of(const at::Tensor& bytes, int rank) {
  return AskMessage(
      bytes.data_ptr<std::uint8_t>() + rank * kAskBytes, kAskBytes);
}

void write_ask(AskMessage message, const std::string& text) {
  std::ranges::fill(message, 0);
  const std::uint64_t print = fingerprint(text);
  std::memcpy(message.data(), &print, kAskPrintBytes);
  const auto room = message.subspan(kAskPrintBytes);
  std::memcpy(room.data(), text.data(), std::min(text.size(), room.size()));
}

// Whatever a peer has sent.
std::string read_ask(AskMessage message) {
  std::string text;
  for (const std::uint8_t byte : message.subspan(kAskPrintBytes)) {
    if (byte == 0) {
      break;
    }
    text += std::isprint(byte) != 0 ? static_cast<char>(byte) : '?';
  }
  return text;
}

}  // namespace

void CallCheck::send(const Group& group, const std::string& asked) {
  const int world = group.size();
  const auto bytes = static_cast<std::int64_t>(kAskBytes);
  if (!outgoing_.defined()) {
    outgoing_ = at::zeros({world * bytes}, at::kByte);
    incoming_ = at::zeros({world * bytes}, at::kByte);
  }
  for (int rank = 0; rank < world; ++rank) {
    write_ask(ask_of(outgoing_, rank), asked);
  }
  const std::vector<std::int64_t> counts(world, bytes);
  pending_ = all_to_all_messages(
      group, incoming_, outgoing_, counts, counts, (world - 1) * bytes);
}

std::exception_ptr CallCheck::compare() {
  pending_.wait();
  const auto world = static_cast<int>(incoming_.numel() / kAskBytes);
  const AskMessage first = ask_of(incoming_, 0);
  for (int rank = 1; rank < world; ++rank) {
    const AskMessage other = ask_of(incoming_, rank);
    if (!std::ranges::equal(first, other)) {
      return std::make_exception_ptr(Error(concat(
          "[gradwire.comm] ranks do not agree on compressed_all_reduce: rank 0 "
          "asks for '",
          read_ask(first),
          "', rank ",
          rank,
          " for '",
          read_ask(other),
          "'")));
    }
  }
  return nullptr;
}

}  // namespace gradwire
