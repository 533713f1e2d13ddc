#include "gradwire/rpc/rendezvous.h"

#include <thread>

#include "gradwire/base/error.h"

namespace gradwire::rpc {
namespace {

constexpr std::chrono::milliseconds kPoll{2};

std::string key(const std::string& topic, int rank) {
  return concat("rpc/", topic, "/", rank);
}

}  // namespace

Rendezvous::Rendezvous(StorePtr store, int rank, int world)
    : store_(std::move(store)), rank_(rank), world_(world) {}

template <class Work>
auto Rendezvous::guarded(const Work& work) {
  try {
    return work();
  } catch (const std::exception& e) {
    throw CommError(concat(
        "[gradwire.rpc] the store is lost, its host has left: ",
        first_line(e.what()),
        " (rank ",
        rank_,
        ")"));
  }
}

void Rendezvous::leave(const std::string& topic, const std::string& text) {
  guarded([&] {
    store_->set(
        key(topic, rank_), std::vector<std::uint8_t>(text.begin(), text.end()));
  });
}

std::vector<int> Rendezvous::missing(const std::string& topic) {
  return guarded([&] {
    std::vector<int> result;
    for (int rank = 0; rank < world_; ++rank) {
      if (!store_->check({key(topic, rank)})) {
        result.push_back(rank);
      }
    }
    return result;
  });
}

std::vector<int> Rendezvous::wait(
    const std::string& topic,
    Clock::time_point deadline,
    const std::function<void()>& meanwhile) {
  for (;;) {
    auto late = missing(topic);
    if (late.empty() || Clock::now() >= deadline) {
      return late;
    }
    meanwhile();
    std::this_thread::sleep_for(kPoll);
  }
}

std::vector<std::string> Rendezvous::read(const std::string& topic) {
  return guarded([&] {
    std::vector<std::string> result;
    for (int rank = 0; rank < world_; ++rank) {
      const auto bytes = store_->get(key(topic, rank));
      result.emplace_back(bytes.begin(), bytes.end());
    }
    return result;
  });
}

}  // namespace gradwire::rpc
