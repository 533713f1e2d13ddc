#include "gradwire/comm/roll_call.h"

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <algorithm>
#include <future>
#include <thread>
#include <vector>

#include "gradwire/base/text.h"
#include "gradwire/comm/group_impl.h"

namespace gradwire {
namespace {

using Clock = std::chrono::steady_clock;
using Milliseconds = std::chrono::milliseconds;

constexpr Milliseconds kLongest{5000};
constexpr Milliseconds kBetweenLooks{20};
// The store itself may not answer.
constexpr Milliseconds kGrace{500};

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

  std::string key(int failure, int rank) const {
    return concat("here/", failure, "/", rank);
  }
  void say_here(int failure) const {
    store->set(key(failure, origin.rank), std::vector<std::uint8_t>{1});
  }
  // Throws when the store is lost.
  std::string look(int failure) const {
    say_here(failure);
    std::vector<int> missing;
    for (int rank = 0; rank < origin.world; ++rank) {
      missing.push_back(rank);
    }
    const auto until = Clock::now() + patience;
    while (true) {
      std::erase_if(missing, [&](int rank) {
        return store->check({key(failure, rank)});
      });
      if (missing.empty() || Clock::now() >= until) {
        return to_text(missing);
      }
      std::this_thread::sleep_for(kBetweenLooks);
    }
  }
};

RollCall::RollCall(const Group& group)
    : state_(std::make_shared<State>(State{
          group.impl().store->clone(),
          group.impl().origin,
          std::min<Milliseconds>(group.timeout() / 4, kLongest)})) {}

RollCall::~RollCall() = default;

void RollCall::answer() {
  std::thread([state = state_, failure = state_->failures++] {
    try {
      state->say_here(failure);
    } catch (const std::exception&) {
      // Nobody is there to hear it; the error itself matters more.
    }
  }).detach();
}

// Two threads: what the store does to the first one cannot hold up the second.
void RollCall::ask(std::function<void(const std::string&)> tell) {
  std::promise<std::string> found;
  auto result = found.get_future();
  std::thread([state = state_,
               failure = state_->failures++,
               found = std::move(found)]() mutable {
    try {
      found.set_value(state->look(failure));
    } catch (const std::exception&) {
      found.set_value(kNoStore);
    }
  }).detach();
  std::thread([result = std::move(result),
               tell = std::move(tell),
               most = state_->patience + kGrace]() mutable {
    const bool known = result.wait_for(most) == std::future_status::ready;
    tell(known ? result.get() : kNoStore);
  }).detach();
}

}  // namespace gradwire
