#include "gradwire/ddp/join.h"

#include <algorithm>
#include <exception>
#include <mutex>
#include <system_error>
#include <thread>

#include "gradwire/base/error.h"
#include "gradwire/comm/agreement.h"
#include "gradwire/ddp/joined_ddp.h"

namespace gradwire {

// What ranks compare. A DDP is known by the name of its own group.
std::vector<Fact> Join::facts_of(
    const DdpEngine& engine, const JoinOptions& options) const {
  if (engine.is_joined() || std::ranges::count(engines_, &engine) > 1) {
    fail("ddp", "a DDP can be in one Join at a time");
  }
  return {
      {"number of DDPs", concat(engines_.size())},
      {"DDP", engine.group().name()},
      {"divide_by_initial_world_size",
       concat(options.divide_by_initial_world_size)},
      {"throw_on_early_termination",
       concat(options.throw_on_early_termination)}};
}

Join::Join(const std::vector<DdpEngine*>& engines, const JoinOptions& options)
    : engines_(engines), exceptions_before_(std::uncaught_exceptions()) {
  if (engines_.empty()) {
    fail("ddp", "a Join got no DDP");
  }
  for (auto* engine : engines_) {
    agree_checked(
        engine->parent(), "Join", [&] { return facts_of(*engine, options); });
    joined_.push_back(std::make_shared<JoinedDdp>(*engine, options));
  }
  for (std::size_t i = 0; i < engines_.size(); ++i) {
    engines_[i]->set_join(joined_[i]);
  }
}

// NOLINTNEXTLINE(bugprone-exception-escape): as finish() does
Join::~Join() noexcept(false) {
  if (std::uncaught_exceptions() > exceptions_before_) {
    detach();
    return;
  }
  if (!engines_.empty()) {
    finish();
  }
}

void Join::release_engines() {
  for (auto* engine : engines_) {
    engine->set_join(nullptr);
  }
  engines_.clear();
}

void Join::detach() {
  release_engines();
  for (auto& joined : joined_) {
    joined->close();
  }
}

// Each DDP on a thread of its own, the first on this one: others may use them
// in any order.
void Join::finish() {
  if (engines_.empty()) {
    fail("ddp", "the Join is finished already");
  }
  release_engines();
  std::mutex mutex;
  std::exception_ptr failure;
  const auto note_failure = [&](const std::exception_ptr& error) {
    const std::lock_guard lock(mutex);
    failure = failure ? failure : error;
  };
  const auto mirror = [&](JoinedDdp& joined) {
    try {
      joined.mirror();
    } catch (...) {
      note_failure(std::current_exception());
    }
    joined.close();
  };
  std::vector<std::thread> threads;
  for (std::size_t i = 1; i < joined_.size(); ++i) {
    try {
      threads.emplace_back(mirror, std::ref(*joined_[i]));
    } catch (const std::system_error& e) {
      note_failure(std::make_exception_ptr(Error(concat(
          "[gradwire.ddp] no thread for a DDP of the Join could be started: ",
          e.what()))));
      joined_[i]->close();
    }
  }
  mirror(*joined_.front());
  for (auto& thread : threads) {
    thread.join();
  }
  joined_.clear();
  if (failure) {
    std::rethrow_exception(failure);
  }
}

}  // namespace gradwire
