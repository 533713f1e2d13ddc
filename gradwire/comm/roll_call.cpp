#include "gradwire/comm/roll_call.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongest{5000};

// Rank 0 serves the store.
constexpr const char* kNoStore =
    " (rank 0 does not answer, which serves the store)";

std::string to_text(const std::vector<int>& missing) {
  if (missing.empty()) {
    return "";
  }
  const bool one = missing.size() == 1;
  return concat(
      one ? " (rank " : " (ranks ",
      join(missing),
      one ? " does not answer)" : " do not answer)");
}

}  // namespace

struct RollCall::State {
  StorePtr store;
  Origin origin;
  Milliseconds patience;
  // All ranks count alike: failures that a group survives are those that all
  // ranks have seen.
  int failures = 0;

  std::string key(int rank) const {
    return concat("here/", failures, "/", rank);
  }
  // With a connection of its own: others may be waiting on the first one.
  StorePtr say_here() const {
    StorePtr own = store->clone();
    own->set(key(origin.rank), std::vector<std::uint8_t>{1});
    return own;
  }
  std::string ask() const {
    const auto until = Clock::now() + patience;
    const StorePtr own = say_here();
    std::vector<int> missing;
    for (int rank = 0; rank < origin.world; ++rank) {
      const auto left =
          std::chrono::duration_cast<Milliseconds>(until - Clock::now());
      try {
        own->wait({key(rank)}, std::max(left, Milliseconds(1)));
      } catch (const std::exception&) {
        missing.push_back(rank);
      }
    }
    return to_text(missing);
  }
};

RollCall::RollCall(const Group& group)
    : state_(std::make_unique<State>(State{
          group.impl().store,
          group.impl().origin,
          std::min<Milliseconds>(group.timeout() / 2, kLongest)})) {}

RollCall::~RollCall() = default;

void RollCall::answer() {
  try {
    state_->say_here();
  } catch (const std::exception&) {
    // Nobody is there to hear it; the error itself matters more.
  }
  ++state_->failures;
}

std::string RollCall::missing() {
  std::string text;
  try {
    text = state_->ask();
  } catch (const std::exception&) {
    text = kNoStore;
  }
  ++state_->failures;
  return text;
}

}  // namespace gradwire
